"""The few operations worth their own code."""
from .depthwise import DepthwiseConv2d, depthwise_conv2d

__all__ = ['DepthwiseConv2d', 'depthwise_conv2d']
