"""A backbone's features as they are: it is not trained, and what reads them is small or usual."""
from mmcv.cnn import build_norm_layer
from mmdet.models.detectors import RetinaNet
from mmdet.registry import MODELS as DETECTORS
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from mmseg.models.segmentors import EncoderDecoder
from mmseg.registry import MODELS as SEGMENTORS
from torch import Tensor


class FrozenBackbone:
    """For a detector or segmentor with a ``backbone``: no gradient, and always in eval mode.

    In the constructor, before DistributedDataParallel asks which parameters get a gradient. Names
    of parameters stay what they are, so that checkpoints fit the plain model, too.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.backbone.requires_grad_(False)

    def train(self, mode: bool = True):
        """Set the mode of all but the backbone: its norms and dropped paths stay as in a test."""
        super().train(mode)
        self.backbone.eval()
        return self


@DETECTORS.register_module()
class FrozenRetinaNet(FrozenBackbone, RetinaNet):
    """RetinaNet that trains its pyramid and its heads alone."""


@SEGMENTORS.register_module()
class FrozenEncoderDecoder(FrozenBackbone, EncoderDecoder):
    """A segmentor that trains its heads (and its neck) alone."""


@SEGMENTORS.register_module()
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
