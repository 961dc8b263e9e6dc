"""Detectors that compare features as they are: the backbone is not trained."""
from mmdet.models.detectors import RetinaNet
from mmdet.registry import MODELS


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


@MODELS.register_module()
class FrozenRetinaNet(FrozenBackbone, RetinaNet):
    """RetinaNet that trains its pyramid and its heads alone."""
