"""Vision backbones for OpenMMLab. Importing the package registers all of them in MODELS."""
from .focalnet import FocalModulation, FocalNet

__all__ = ['FocalModulation', 'FocalNet']
