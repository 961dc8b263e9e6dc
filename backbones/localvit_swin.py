"""LocalViT on the Swin Transformer (Liu et al., ICCV 2021, arXiv 2103.14030).

Swin's attention stays inside windows; every second block shifts them by half a window, so that
neighbours which a border separated meet (Swin, section 3.2). LocalViT (arXiv 2104.05707) puts the
feed-forward network with locality in its blocks. Maps are (B, H, W, C) inside, (B, C, H, W) at the
outputs.
"""
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor, nn

from .base import Staged
from .layers import (
    Attention,
    DropPath,
    PatchEmbed,
    Stage,
    check_stage_lengths,
    check_stages,
    drop_path_rates,
    init_like_vit,
    resample_positions,
    split_heads,
)
from .localvit import LocalityFeedForward


def to_windows(x: Tensor, side: int) -> Tensor:
    """(B, H, W, C) to (B * H / side * W / side, side * side, C)."""
    height, width = x.shape[1:3]
    x = x.unflatten(2, (width // side, side)).unflatten(1, (height // side, side))
    return x.transpose(2, 3).flatten(3, 4).flatten(0, 2)


def from_windows(x: Tensor, side: int, size: tuple[int, int]) -> Tensor:
    """What ``to_windows`` was given: (B, H, W, C), size being H and W."""
    height, width = size
    x = x.unflatten(0, (-1, height // side, width // side)).unflatten(3, (side, side))
    return x.transpose(2, 3).flatten(3, 4).flatten(1, 2)


def shift_windows(size: tuple[int, int], side: int, like: Tensor):
    """How a stage's shifted blocks shift their map, and who then may not attend to whom.

    The map, padded to whole windows, is rolled up and to the left by half a window (the cyclic
    shift of Swin, section 3.2), which brings what lay at one edge next to what lay at the other:
    these must stay apart. Along an axis with one window only there is nobody to meet, and no
    shift.

    Args:
        size: H and W of the map.
        side: of a window.
        like: a tensor of the device and dtype wanted.

    Returns:
        the shift in pixels along H and W; what is added to the attention scores, (number of
        windows, 1, N, N) with N = side^2, or None where nothing is shifted.
    """
    shift = tuple(side // 2 if length > side else 0 for length in size)
    if not any(shift):
        return shift, None
    rows, columns = (
        torch.arange(-(-length // side) * side, 0, -1, device=like.device) <= rolled
        for length, rolled in zip(size, shift, strict=True))  # True: came round from the other edge
    region = 2 * rows[:, None] + columns  # (H, W) of the padded map
    region = to_windows(region[None, :, :, None], side)  # (windows, N, 1)
    apart = (region != region.transpose(1, 2))[:, None]
    return shift, -100. * apart.to(like.dtype)  # as released: finite, and exp(-100) is nothing


class WindowAttention(Attention):
    """Multi-head self-attention inside each window, with a learned bias for each relative position.

    softmax(Q K^T / sqrt(d) + B) V, B_ij being the entry for the offset from j to i, one for each
    head (Swin, equation 4).
    """

    def __init__(self, dim: int, num_heads: int, window_size: int, qkv_bias: bool,
                 attn_drop: float, proj_drop: float):
        super().__init__(dim, num_heads, qkv_bias, attn_drop, proj_drop)
        offsets = 2 * window_size - 1  # along one axis: from 1 - window_size to window_size - 1
        self.relative_position_bias_table = nn.Parameter(torch.zeros(offsets**2, num_heads))
        nn.init.trunc_normal_(self.relative_position_bias_table, std=0.02)
        place = torch.arange(window_size**2)
        place = torch.stack([place // window_size, place % window_size])  # row and column, (2, N)
        row, column = place[:, :, None] - place[:, None] + window_size - 1  # each (N, N)
        self.register_buffer('relative_position_index', row * offsets + column)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B * W, N, C) windows, W an image, to the same; mask is (W, 1, N, N)."""
        bias = self.relative_position_bias_table[self.relative_position_index]  # (N, N, M)
        bias = bias.permute(2, 0, 1).contiguous()[None]
        if mask is not None:
            bias = bias + mask
        bias = bias.flatten(0, 1)[None]  # (1, M, N, N), or (1, W * M, N, N): nothing an image
        q, k, v = (split_heads(t, self.num_heads) for t in self.qkv(x).chunk(3, dim=-1))
        q, k, v = (t.reshape(-1, bias.shape[1], *t.shape[2:]) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, bias, self.attn_drop * self.training)
        y = y.unflatten(1, (-1, self.num_heads)).flatten(0, 1)  # (B * W, M, N, C / M)
        return self.proj_drop(self.proj(y.transpose(1, 2).flatten(2)))


class LocalSwinBlock(nn.Module):
    """Attention inside windows, then the feed-forward network with locality.

    As released, stochastic depth is for the attention alone.
    """

    def __init__(self, dim: int, num_heads: int, window_size: int, mlp_ratio: float,
                 qkv_bias: bool, drop: float, attn_drop: float, drop_path: float, act: str,
                 reduction: int):
        super().__init__()
        self.window_size = window_size
        self.norm1 = nn.LayerNorm(dim)
        self.attn = WindowAttention(dim, num_heads, window_size, qkv_bias, attn_drop, drop)
        self.drop_path = DropPath(drop_path)
        self.conv = LocalityFeedForward(dim, mlp_ratio, act, reduction)

    def forward(self, x: Tensor, shift: tuple[int, int], mask: Tensor | None) -> Tensor:
        """(B, H, W, C) to the same; shift and mask are those of ``shift_windows``."""
        x = x + self.drop_path(self._attention(self.norm1(x), shift, mask))
        return self.conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)

    def _attention(self, x: Tensor, shift: tuple[int, int], mask: Tensor | None) -> Tensor:
        side, (height, width) = self.window_size, x.shape[1:3]
        # zeros after the norm, as in Swin's detectors: attended to like any token
        size = [-(-length // side) * side for length in (height, width)]
        x = F.pad(x, (0, 0, 0, size[1] - width, 0, size[0] - height))
        if any(shift):
            x = x.roll((-shift[0], -shift[1]), (1, 2))
        x = from_windows(self.attn(to_windows(x, side), mask), side, size)
        if any(shift):
            x = x.roll(shift, (1, 2))
        return x[:, :height, :width]


class PatchMerging(nn.Module):
    """Halve a map and double its channels: a linear layer on 2 x 2 neighbours (Swin, section 3.1).

    Odd sides are first padded with zeros on the right and at the bottom.
    """

    def __init__(self, dim: int):
        super().__init__()
        self.norm = nn.LayerNorm(4 * dim)
        self.reduction = nn.Linear(4 * dim, 2 * dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, ceil(H / 2), ceil(W / 2), 2 C)."""
        x = F.pad(x, (0, 0, 0, x.shape[2] % 2, 0, x.shape[1] % 2))
        x = x.unflatten(2, (-1, 2)).unflatten(1, (-1, 2))  # (B, H / 2, 2, W / 2, 2, C)
        x = x.permute(0, 1, 3, 4, 2, 5).flatten(3)  # neighbours column by column, as released
        return self.reduction(self.norm(x))


@MODELS.register_module()
class LocalViTSwin(Staged):
    """LocalViT on Swin as a backbone for dense prediction.

    Takes images (B, 3, H, W) of any H and W and returns one map (B, C_i, ceil(H / s_i),
    ceil(W / s_i)) for each stage i in ``out_indices``, C_i = embed_dim * 2^i, s_i = 4 * 2^i.

    Args:
        embed_dim: channels of the first stage.
        depths: blocks in each stage; every second one works on shifted windows.
        num_heads: attention heads in each stage.
        window_size: side of a window.
        mlp_ratio: hidden width of the feed-forward network over its input width.
        qkv_bias: bias of the query, key and value projection.
        drop_rate: dropout after the stem and the attention's projection.
        attn_drop_rate: dropout of attention weights.
        drop_path_rate: stochastic depth of the last block; it grows linearly from 0 at the first.
        patch_norm: LayerNorm after the stem.
        act: 'relu6', 'hs', 'hs+se', 'hs+eca' or 'hs+ecah' (``LocalityFeedForward``).
        reduction: squeeze factor of SE; None is the release's, a quarter of each stage's channels.
        out_indices: stages whose maps are returned. Stages behind the last of them are not run
            and get no gradient.
        frozen_stages: -1 freezes nothing, 0 the stem, k the stem and the first k stages: their
            parameters get no gradient and they stay in eval mode.
        out_norm: each map that is returned has its own LayerNorm (norm0 ..), as in Swin's
            detectors.
        norm_eval: keep BatchNorm's statistics as they are.
        use_checkpoint: recompute each block in the backward pass instead of storing it.
        init_cfg: ``dict(type='Pretrained', checkpoint=FILE_OR_URL)`` starts from published weights
            (another window's position biases are resampled).

    Raises:
        ValueError: arguments that do not fit together, or weights of another model.
    """

    def __init__(self,
                 embed_dim: int = 96,
                 depths: Sequence[int] = (2, 2, 6, 2),
                 num_heads: Sequence[int] = (3, 6, 12, 24),
                 window_size: int = 7,
                 mlp_ratio: float = 4.,
                 qkv_bias: bool = True,
                 drop_rate: float = 0.,
                 attn_drop_rate: float = 0.,
                 drop_path_rate: float = 0.,
                 patch_norm: bool = True,
                 act: str = 'hs+se',
                 reduction: int | None = None,
                 out_indices: Sequence[int] = (0, 1, 2, 3),
                 frozen_stages: int = -1,
                 out_norm: bool = True,
                 norm_eval: bool = False,
                 use_checkpoint: bool = False,
                 init_cfg: dict | None = None):
        super().__init__(init_cfg, norm_eval, use_checkpoint)
        num_stages = len(depths)
        check_stage_lengths('LocalViTSwin', depths, num_heads=num_heads)
        check_stages('LocalViTSwin', num_stages, out_indices, frozen_stages)
        if window_size < 1:
            raise ValueError(f'LocalViTSwin: window_size must be at least 1, not {window_size}')
        self.out_indices = tuple(out_indices)
        self.frozen_stages = frozen_stages
        self.window_size = window_size

        dims = [embed_dim * 2**i for i in range(num_stages)]
        self.patch_embed = PatchEmbed(4, 3, embed_dim, norm=patch_norm)
        self.pos_drop = nn.Dropout(drop_rate)
        drop_path = iter(drop_path_rates(drop_path_rate, sum(depths)))
        self.layers = nn.ModuleList()
        for i, dim in enumerate(dims):
            blocks = [
                LocalSwinBlock(dim, num_heads[i], window_size, mlp_ratio, qkv_bias, drop_rate,
                               attn_drop_rate, next(drop_path), act,
                               dim // 4 if reduction is None else reduction)
                for _ in range(depths[i])
            ]
            self.layers.append(Stage(blocks, PatchMerging(dim) if i < num_stages - 1 else None))
        for i in self.out_indices:
            self.add_module(f'norm{i}', nn.LayerNorm(dims[i]) if out_norm else nn.Identity())
        init_like_vit(self)
        self._finish()

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Images (B, 3, H, W) to a tuple of maps, one for each of ``out_indices``."""
        x = self.pos_drop(self.patch_embed(x))
        outs = []
        for i in range(self.out_indices[-1] + 1):
            if i > 0:
                x = self.layers[i - 1].downsample(x)
            shift, mask = shift_windows(x.shape[1:3], self.window_size, like=x)
            for j, block in enumerate(self.layers[i].blocks):
                x = self._run(block, x, *((shift, mask) if j % 2 else ((0, 0), None)))
            if i in self.out_indices:
                out = getattr(self, f'norm{i}')(x)
                outs.append(out.permute(0, 3, 1, 2).contiguous())
        return tuple(outs)

    def _adapt_weights(self, state, model):
        return adapt_swin_weights(state, model)


def adapt_swin_weights(state: dict[str, Tensor], model: dict[str, Tensor]):
    """Fit a Swin file to another window size.

    The table of relative position biases, a grid of (2 window - 1)^2 offsets, is resampled; which
    entry belongs to which pair of tokens is the model's own matter. The masks that the release
    stores, of one image size, are no weights: they are left out.

    Args:
        state: the file's entries under our names.
        model: the model's entries.

    Returns:
        (adapted entries, {name: what was done to it}).
    """
    adapted, rules = {}, {}
    for name, value in state.items():
        if name.endswith('.attn_mask'):
            continue
        target = model.get(name, value)
        if name.endswith('.relative_position_index'):
            value = target
        elif (name.endswith('.relative_position_bias_table') and value.shape != target.shape
              and value.shape[1:] == target.shape[1:]):  # else other heads: reported as a mismatch
            old, new = (round(len(table)**0.5) for table in (value, target))  # offsets an axis
            value = resample_positions(value[None], (old, old), (new, new))[0]
            rules[name] = f'window resampled {(old + 1) // 2} -> {(new + 1) // 2}'
        adapted[name] = value
    return adapted, rules
