"""Vision backbones for OpenMMLab. Importing the package registers all of them in MODELS."""
from .container import Container
from .focalnet import FocalModulation, FocalNet
from .from_timm import TimmBackbone
from .from_transformers import TransformersBackbone
from .localvit import LocalityFeedForward, LocalViT
from .localvit_pvt import LocalViTPVT
from .localvit_swin import LocalViTSwin
from .localvit_t2t import LocalViTT2T
from .localvit_tnt import LocalViTTNT
from .pyramid import SimplePyramid

__all__ = [
    'Container', 'FocalModulation', 'FocalNet', 'LocalViT', 'LocalViTPVT', 'LocalViTSwin',
    'LocalViTT2T', 'LocalViTTNT', 'LocalityFeedForward', 'SimplePyramid', 'TimmBackbone',
    'TransformersBackbone',
]
