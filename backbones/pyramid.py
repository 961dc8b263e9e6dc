"""A pyramid from maps of one resolution (Li et al., ViTDet, arXiv 2203.16527, section 3)."""
from collections.abc import Sequence
from math import log2

from mmengine.model import BaseModule
from mmengine.registry import MODELS
from torch import Tensor, nn


@MODELS.register_module()
class SimplePyramid(BaseModule):
    """ViTDet's simple feature pyramid: each scale is made from a map of the one resolution.

    Deconvolutions of stride 2 double a map's sides, max pooling halves them; an odd side is rounded
    up. As in the paper a normalisation and a GELU stand between two deconvolutions. Each map is
    normalised first, since blocks in the middle of a transformer leave theirs at any size. What
    follows in the paper, a 1 x 1 and a 3 x 3 convolution, the next neck has (FPN, ChannelMapper).

    Unlike in the paper the normalisation is BatchNorm, as in mmseg's ``Feature2Pyramid``: trained
    from random weights, a transformer learns much slower with LayerNorm (docs/measured.md).

    Args:
        in_channels: channels C of the maps.
        scales: what the sides are multiplied by, a power of two, one for each map that is made.
        init_cfg: as in mmengine.

    Raises:
        ValueError: another scale.
    """

    def __init__(self, in_channels: int, scales: Sequence[float] = (4, 2, 1, 0.5),
                 init_cfg: dict | None = None):
        super().__init__(init_cfg)
        if not scales or any(scale <= 0 or log2(scale) % 1 for scale in scales):
            raise ValueError(f'SimplePyramid: scales must be powers of two, not {tuple(scales)}')
        self.levels = nn.ModuleList(level(in_channels, round(log2(scale))) for scale in scales)

    def forward(self, maps: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Maps (N, C, H, W), one for each scale or one for all, to (N, C, scale * H, scale * W)."""
        if len(maps) == 1:
            maps = list(maps) * len(self.levels)
        return tuple(make(x) for make, x in zip(self.levels, maps, strict=True))


def level(channels: int, doublings: int) -> nn.Module:
    """Twice as large so often, or half as large."""
    steps = [nn.BatchNorm2d(channels)]
    for i in range(doublings):
        steps += [nn.BatchNorm2d(channels), nn.GELU()] * (i > 0)
        steps.append(nn.ConvTranspose2d(channels, channels, 2, 2))
    steps += [nn.MaxPool2d(2, 2, ceil_mode=True) for _ in range(-doublings)]
    return nn.Sequential(*steps)
