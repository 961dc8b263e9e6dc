"""Vision backbones for OpenMMLab. Importing the package registers all of them in MODELS."""
from .container import Container
from .focalnet import FocalModulation, FocalNet
from .localvit import LocalityFeedForward, LocalViT
from .localvit_pvt import LocalViTPVT
from .localvit_swin import LocalViTSwin
from .localvit_t2t import LocalViTT2T
from .localvit_tnt import LocalViTTNT

__all__ = [
    'Container', 'FocalModulation', 'FocalNet', 'LocalViT', 'LocalViTPVT', 'LocalViTSwin',
    'LocalViTT2T', 'LocalViTTNT', 'LocalityFeedForward',
]
