"""CONTAINER: Context Aggregation Network (Gao et al., NeurIPS 2021, arXiv 2106.01401).

Convolution, self-attention and MLP-Mixer differ in one thing, the affinity matrix A with which a
place gathers the values V of all places (section 3):

    Y = (A V) W + X

A of a depthwise convolution is static and local, A of self-attention is dynamic (it follows from
X), A of MLP-Mixer is static and learned for every pair of places. CONTAINER mixes a dynamic and a
static one (section 3); CONTAINER-Light does so in the last stage, and is a convolution in the
others, where the map is large (section 3).
"""
from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor, nn

from .base import Backbone
from .layers import (
    DropPath,
    PatchEmbed,
    attend,
    check_heads,
    check_stage_lengths,
    check_stages,
    drop_path_rates,
    map_to_tokens,
    split_heads,
    tokens_to_map,
)
from .ops import DepthwiseConv2d
from .pretrained import KINDS

AFFINITIES = ('static', 'dynamic', 'mixed', 'mlp')
KERNEL_SIZE = 5  # of the static, local affinity


class ConvMlp(nn.Module):
    """Two 1 x 1 convolutions with a GELU between."""

    def __init__(self, dim: int, hidden_dim: int, drop: float = 0.):
        super().__init__()
        self.fc1 = nn.Conv2d(dim, hidden_dim, 1)
        self.act = nn.GELU()
        self.fc2 = nn.Conv2d(hidden_dim, dim, 1)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.fc2(self.drop(self.act(self.fc1(x)))))


class LearnedAffinity(nn.Module):
    """A static N x N matrix a head: MLP-Mixer's affinity (paper, section 3).

    It was learned for one grid of N places. For another it is resampled over the places that
    gather and over those that are gathered, and scaled so that the sum over the latter, an
    integral over the image, keeps its size.

    Args:
        num_heads: heads M, each with its own matrix and its share of the channels.
        grid: the H and W of the training images' map, N = H * W.
    """

    def __init__(self, num_heads: int, grid: tuple[int, int]):
        super().__init__()
        self.grid = tuple(grid)
        places = grid[0] * grid[1]
        self.weight = nn.Parameter(torch.empty(num_heads, places, places))
        nn.init.trunc_normal_(self.weight, std=places**-0.5)  # the variance of V stays

    def forward(self, v: Tensor) -> Tensor:
        """(B, C, H, W) to (B, C, H, W)."""
        size = tuple(v.shape[2:])
        values = split_heads(map_to_tokens(v), len(self.weight))  # (B, M, N, D)
        y = self.matrix(size) @ values
        return tokens_to_map(y.transpose(1, 2).flatten(2), *size)

    def matrix(self, size: tuple[int, int]) -> Tensor:
        """The matrices for a map of this H and W: (M, H * W, H * W)."""
        if size == self.grid:
            return self.weight
        # antialias: on a smaller grid a matrix that is local would else fall between the places
        resample = partial(F.interpolate, size=size, mode='bilinear', antialias=True)
        a = self.weight.float().unflatten(2, self.grid)  # (M, N', H', W'): gathered places
        a = resample(a).flatten(2)  # (M, N', N)
        a = a.transpose(1, 2).unflatten(2, self.grid)  # (M, N, H', W'): gathering places
        a = resample(a).flatten(2).transpose(1, 2)
        scale = self.grid[0] * self.grid[1] / (size[0] * size[1])
        return (a * scale).to(self.weight.dtype)


class ContainerBlock(nn.Module):
    """Positions, aggregation of context, MLP: each a residual branch (paper, section 3).

    The sub-modules are named as released, where the convolution is ``attn`` in a static block and
    ``conv`` beside attention.

    Args:
        dim: channels C.
        num_heads: heads of the dynamic and of the learned affinity.
        mlp_ratio: hidden width of the MLP over C.
        affinity: 'static', 'dynamic', 'mixed' or 'mlp'.
        qkv_bias: bias of the convolution that gives queries, keys and values.
        drop, attn_drop, drop_path: dropout, of attention weights, stochastic depth.
        grid: the training images' map, for 'mlp'.
    """

    def __init__(self, dim: int, num_heads: int, mlp_ratio: float, affinity: str, qkv_bias: bool,
                 drop: float, attn_drop: float, drop_path: float, grid: tuple[int, int]):
        super().__init__()
        self.affinity = affinity
        self.num_heads = num_heads
        self.pos_embed = DepthwiseConv2d(dim, 3)
        self.norm1 = nn.BatchNorm2d(dim)
        dynamic = affinity in ('dynamic', 'mixed')
        self.conv1 = nn.Conv2d(dim, 3 * dim if dynamic else dim, 1, bias=qkv_bias)
        if dynamic or affinity == 'mlp':
            check_heads(dim, num_heads)
        if affinity == 'static':
            self.attn = DepthwiseConv2d(dim, KERNEL_SIZE)
        elif affinity == 'mlp':
            self.attn = LearnedAffinity(num_heads, grid)
        elif affinity == 'mixed':
            self.conv = DepthwiseConv2d(dim, KERNEL_SIZE)
            self.sa_weight = nn.Parameter(torch.zeros(1))
        self.conv2 = nn.Conv2d(dim, dim, 1)
        self.attn_drop = attn_drop
        self.drop_path = DropPath(drop_path)
        self.norm2 = nn.BatchNorm2d(dim)
        self.mlp = ConvMlp(dim, int(dim * mlp_ratio), drop)

    def gather(self, x: Tensor) -> Tensor:
        """A V, for the normalised map (B, C, H, W)."""
        if self.affinity in ('static', 'mlp'):
            return self.attn(self.conv1(x))
        q, k, v = self.conv1(x).chunk(3, dim=1)
        heads = (split_heads(map_to_tokens(t), self.num_heads) for t in (q, k, v))
        y = tokens_to_map(attend(*heads, self.attn_drop * self.training), *x.shape[2:])
        if self.affinity == 'mixed':
            alpha = self.sa_weight.sigmoid()
            y = alpha * y + (1 - alpha) * self.conv(v)
        return y

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, C, H, W)."""
        x = x + self.pos_embed(x)
        x = x + self.drop_path(self.conv2(self.gather(self.norm1(x))))
        return x + self.drop_path(self.mlp(self.norm2(x)))


@MODELS.register_module()
class Container(Backbone):
    """CONTAINER as a backbone for dense prediction; by default CONTAINER-Light as released.

    Takes images (B, 3, H, W) of any H and W and returns one map (B, embed_dims[i], ceil(H / s_i),
    ceil(W / s_i)), s_i the product of the patch sizes so far, for each stage i in
    ``out_indices``; the last stage's after the classifier's BatchNorm, the others' raw.

    Args:
        embed_dims: channels of each stage.
        depths: blocks in each stage.
        num_heads: heads of the dynamic and of the learned affinity, one number or one a stage.
        mlp_ratios: hidden width of the MLP over its input width, by stage.
        patch_sizes: what each stage divides the map's sides by.
        affinity: 'static' (depthwise convolution), 'dynamic' (self-attention), 'mixed' (both,
            weighed by a learned gate) or 'mlp' (a learned N x N matrix), by stage.
        qkv_bias: bias of the convolution that gives queries, keys and values.
        drop_rate: dropout after the first patch embedding and in the MLPs.
        attn_drop_rate: dropout of attention weights.
        drop_path_rate: stochastic depth of the last block; it grows linearly from 0 at the first.
        out_indices: stages whose maps are returned. Stages behind the last of them are not run
            and get no gradient.
        frozen_stages: -1 freezes nothing, 0 the first patch embedding, k that and the first k
            stages: their parameters get no gradient and they stay in eval mode.
        img_size: side of the square training images, which 'mlp' matrices are learned for; for
            others they are resampled.
        norm_eval: keep BatchNorm's statistics as they are.
        use_checkpoint: recompute each block in the backward pass instead of storing it.
        init_cfg: ``dict(type='Pretrained', checkpoint=FILE_OR_URL)`` starts from published
            weights.

    Raises:
        ValueError: arguments that do not fit together, or weights of another model.
    """

    def __init__(self,
                 embed_dims: Sequence[int] = (64, 128, 320, 512),
                 depths: Sequence[int] = (3, 4, 8, 3),
                 num_heads: int | Sequence[int] = 16,
                 mlp_ratios: Sequence[float] = (8, 8, 4, 4),
                 patch_sizes: Sequence[int] = (4, 2, 2, 2),
                 affinity: Sequence[str] = ('static', 'static', 'static', 'mixed'),
                 qkv_bias: bool = True,
                 drop_rate: float = 0.,
                 attn_drop_rate: float = 0.,
                 drop_path_rate: float = 0.,
                 out_indices: Sequence[int] = (0, 1, 2, 3),
                 frozen_stages: int = -1,
                 img_size: int = 224,
                 norm_eval: bool = False,
                 use_checkpoint: bool = False,
                 init_cfg: dict | None = None):
        super().__init__(init_cfg, norm_eval, use_checkpoint)
        num_stages = len(depths)
        num_heads = (num_heads, ) * num_stages if isinstance(num_heads, int) else num_heads
        if isinstance(affinity, str):
            raise ValueError(f'Container: affinity is one word a stage, not {affinity!r} alone')
        check_stage_lengths('Container', depths, embed_dims=embed_dims, num_heads=num_heads,
                            mlp_ratios=mlp_ratios, patch_sizes=patch_sizes, affinity=affinity)
        check_stages('Container', num_stages, out_indices, frozen_stages)
        unknown = [word for word in affinity if word not in AFFINITIES]
        if unknown:
            raise ValueError(f'Container: affinity must be {", ".join(AFFINITIES)}, not '
                             f'{unknown[0]!r}')
        self.out_indices = tuple(out_indices)
        self.frozen_stages = frozen_stages
        self.last = num_stages - 1

        self.pos_drop = nn.Dropout(drop_rate)
        drop_path = iter(drop_path_rates(drop_path_rate, sum(depths)))
        in_chans, side = 3, img_size
        for i, dim in enumerate(embed_dims):
            side = -(-side // patch_sizes[i])  # as PatchEmbed pads
            # the release's names, which count from 1
            self.add_module(f'patch_embed{i + 1}', PatchEmbed(patch_sizes[i], in_chans, dim))
            self.add_module(f'blocks{i + 1}', nn.ModuleList(
                ContainerBlock(dim, num_heads[i], mlp_ratios[i], affinity[i], qkv_bias, drop_rate,
                               attn_drop_rate, next(drop_path), (side, side))
                for _ in range(depths[i])))
            in_chans = dim
        has_norm = self.last in self.out_indices
        self.norm = nn.BatchNorm2d(embed_dims[-1]) if has_norm else nn.Identity()
        self._finish()

    def _stage(self, i: int):
        return getattr(self, f'patch_embed{i + 1}'), getattr(self, f'blocks{i + 1}')

    def _frozen(self):
        if self.frozen_stages >= 0:
            yield from (self.patch_embed1, self.pos_drop)
        for i in range(self.frozen_stages):
            yield from self._stage(i)
        if self.frozen_stages > self.last:
            yield self.norm

    def _unused(self):
        for i in range(self.out_indices[-1] + 1, self.last + 1):
            yield from self._stage(i)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Images (B, 3, H, W) to a tuple of maps, one for each of ``out_indices``."""
        outs = []
        for i in range(self.out_indices[-1] + 1):
            patch_embed, blocks = self._stage(i)
            x = patch_embed(x).permute(0, 3, 1, 2).contiguous()  # (B, C, H, W)
            if i == 0:
                x = self.pos_drop(x)
            for block in blocks:
                x = self._run(block, x)
            if i in self.out_indices:
                outs.append(self.norm(x) if i == self.last else x)
        return tuple(outs)


def kind_of_container(state: dict[str, Tensor]) -> str | None:
    """'CONTAINER-Light' or another CONTAINER, from tensors under our names."""
    if 'blocks1.0.pos_embed.weight' not in state:
        return None
    dims, depths = zip(*((
        len(state.get(f'patch_embed{i}.proj.weight', ())),
        sum(name.startswith(f'blocks{i}.') and name.endswith('.pos_embed.weight')
            for name in state)) for i in range(1, 5)), strict=True)
    light = (dims, depths) == ((64, 128, 320, 512), (3, 4, 8, 3)) and 'blocks4.0.sa_weight' in state
    return 'CONTAINER-Light' if light else f'CONTAINER of {dims} channels and {depths} blocks'


KINDS.append(kind_of_container)
