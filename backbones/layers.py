"""Pieces that the families share."""
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class DropPath(nn.Module):
    """Stochastic depth: in training a whole residual branch is dropped, sample by sample.

    What is kept is divided by the keep probability (Huang et al., Deep Networks with Stochastic
    Depth, arXiv 1603.09382).
    """

    def __init__(self, drop_prob: float = 0.):
        super().__init__()
        if not 0 <= drop_prob < 1:
            raise ValueError(f'drop path is a probability from 0 to below 1, not {drop_prob}')
        self.drop_prob = drop_prob

    def forward(self, x: Tensor) -> Tensor:
        if self.drop_prob == 0. or not self.training:
            return x
        keep_prob = 1. - self.drop_prob
        keep = torch.full((x.shape[0], *[1] * (x.ndim - 1)), keep_prob, dtype=x.dtype,
                          device=x.device).bernoulli()
        return x * keep / keep_prob

    def extra_repr(self) -> str:
        return f'drop_prob={self.drop_prob:.3f}'


class Mlp(nn.Module):
    """Two linear layers with a GELU between, over the last dimension."""

    def __init__(self, dim: int, hidden_dim: int, drop: float = 0.):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden_dim)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden_dim, dim)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.fc2(self.drop(self.act(self.fc1(x)))))


class PatchEmbed(nn.Module):
    """Divide a map's resolution by ``patch_size``: a strided convolution, then LayerNorm.

    A kernel larger than the patch makes neighbouring patches overlap. A map that the patch does
    not divide is first padded with zeros on the right and at the bottom.
    """

    def __init__(self, patch_size: int, in_chans: int, embed_dim: int,
                 kernel_size: int | None = None, padding: int = 0, norm: bool = True):
        super().__init__()
        self.patch_size = patch_size
        self.proj = nn.Conv2d(in_chans, embed_dim, kernel_size or patch_size, patch_size, padding)
        self.norm = nn.LayerNorm(embed_dim) if norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """(N, C_in, H, W) to (N, ceil(H / patch_size), ceil(W / patch_size), C_out)."""
        x = F.pad(x, (0, -x.shape[3] % self.patch_size, 0, -x.shape[2] % self.patch_size))
        return self.norm(self.proj(x).permute(0, 2, 3, 1))


class Stage(nn.Module):
    """The blocks of one resolution, and the downsampling that leads to the next."""

    def __init__(self, blocks: Sequence[nn.Module], downsample: nn.Module | None):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.downsample = downsample


class Attention(nn.Module):
    """Multi-head self-attention over tokens: softmax(Q K^T / sqrt(C / M)) V in each of M heads."""

    def __init__(self, dim: int, num_heads: int, qkv_bias: bool = True, attn_drop: float = 0.,
                 proj_drop: float = 0.):
        super().__init__()
        check_heads(dim, num_heads)
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.attn_drop = attn_drop
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, C) to (B, N, C)."""
        q, k, v = (split_heads(t, self.num_heads) for t in self.qkv(x).chunk(3, dim=-1))
        return self.proj_drop(self.proj(attend(q, k, v, self.attn_drop * self.training)))


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(B, N, M * D) to (B, M, N, D)."""
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def attend(q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.) -> Tensor:
    """Scaled dot-product attention of split heads, (B, M, N, D) each, to (B, N, M * D)."""
    return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout).transpose(1, 2).flatten(2)


def tokens_to_map(x: Tensor, height: int, width: int) -> Tensor:
    """(B, H * W, C) to (B, C, H, W)."""
    return x.unflatten(1, (height, width)).permute(0, 3, 1, 2)


def map_to_tokens(x: Tensor) -> Tensor:
    """(B, C, H, W) to (B, H * W, C)."""
    # With flatten after the permutation the gradient has whole strides for a batch of one too.
    # BatchNorm of torch 2.13 computes a wrong gradient on the CPU from other strides.
    return x.permute(0, 2, 3, 1).flatten(1, 2)


def resample_positions(positions: Tensor, grid: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """Position embeddings of one grid of patches for another (bicubic).

    Args:
        positions: (1, T + H * W, C); the first T belong to class tokens and stay as they are.
        grid: the H and W that they were learned for.
        size: the H and W wanted.

    Returns:
        (1, T + size[0] * size[1], C).
    """
    if tuple(grid) == tuple(size):
        return positions
    extra = positions.shape[1] - grid[0] * grid[1]
    tokens, patches = positions[:, :extra], positions[:, extra:]
    # in float32: bicubic weights in half precision are coarse
    patches = F.interpolate(tokens_to_map(patches.float(), *grid), size=size, mode='bicubic')
    return torch.cat([tokens, map_to_tokens(patches).to(positions.dtype)], dim=1)


def drop_path_rates(last: float, depth: int) -> list[float]:
    """Stochastic depth of each block: from 0 at the first, linearly, to ``last``."""
    return torch.linspace(0, last, depth, device='cpu').tolist()


def init_like_vit(model: nn.Module):
    """Linear layers from a truncated normal of 0.02, their biases 0."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def check_heads(dim: int, num_heads: int):
    """Raise ValueError unless the heads share the channels evenly."""
    if num_heads < 1 or dim % num_heads:
        raise ValueError(f'{dim} channels cannot be split over {num_heads} attention heads')


def check_stage_lengths(name: str, depths, **per_stage):
    """Raise ValueError unless every per-stage argument has one entry a stage."""
    for argument, values in per_stage.items():
        if len(values) != len(depths):
            raise ValueError(f'{name}: {argument} has {len(values)} entries {tuple(values)}, but '
                             f'there are {len(depths)} stages (depths {tuple(depths)})')


def check_stages(name: str, num_stages: int, out_indices, frozen_stages: int):
    """Raise ValueError unless out_indices and frozen_stages speak of stages that exist."""
    bad = [i for i in out_indices if not 0 <= i < num_stages]
    if bad or not len(out_indices) or list(out_indices) != sorted(set(out_indices)):
        raise ValueError(f'{name}: out_indices must be one or more rising numbers from 0 to '
                         f'{num_stages - 1}, not {tuple(out_indices)}')
    if not -1 <= frozen_stages <= num_stages:
        raise ValueError(f'{name}: frozen_stages must be -1 (none), 0 (the stem) or a number of '
                         f'stages up to {num_stages}, not {frozen_stages}')
