"""A segmentor that compares features as they are: a linear head on a frozen backbone.

The experiments with it import this module (custom_imports): detection runs do not import mmseg.
"""
from mmcv.cnn import build_norm_layer
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from mmseg.models.segmentors import EncoderDecoder
from mmseg.registry import MODELS
from torch import Tensor

from .frozen import FrozenBackbone


@MODELS.register_module()
class FrozenEncoderDecoder(FrozenBackbone, EncoderDecoder):
    """A segmentor that trains its heads (and its neck) alone."""


@MODELS.register_module()
class LinearHead(BaseDecodeHead):
    """BatchNorm and a 1 x 1 convolution on one map, (N, C, h, w) to (N, classes, h, w).

    The BatchNorm makes indifferent how large features are, which differs between backbones.

    Args:
        in_channels: C of the map.
        kwargs: BaseDecodeHead's; ``norm_cfg`` is of a BatchNorm.
    """

    def __init__(self, in_channels: int, **kwargs):
        super().__init__(in_channels=in_channels, channels=in_channels, **kwargs)
        self.bn = build_norm_layer(self.norm_cfg, in_channels)[1]

    def forward(self, inputs: tuple[Tensor, ...]) -> Tensor:
        return self.cls_seg(self.bn(self._transform_inputs(inputs)))
