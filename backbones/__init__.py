"""Vision backbones for OpenMMLab. Importing the package registers all of them in MODELS."""
from .focalnet import FocalModulation, FocalNet
from .localvit import LocalityFeedForward, LocalViT

__all__ = ['FocalModulation', 'FocalNet', 'LocalViT', 'LocalityFeedForward']
