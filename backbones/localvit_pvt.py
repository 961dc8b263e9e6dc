"""LocalViT on the Pyramid Vision Transformer (Wang et al., ICCV 2021, arXiv 2102.12122).

PVT gives a transformer the pyramid of a convolutional network: each stage halves the map, and on
the large maps attention stays affordable because keys and values come from a reduced copy of the
map (PVT, section 3.3). LocalViT (arXiv 2104.05707) puts the feed-forward network with locality in
its blocks.
"""
from collections.abc import Sequence

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
    init_like_vit,
    map_to_tokens,
    resample_positions,
    split_heads,
    tokens_to_map,
)
from .localvit import LocalityFeedForward, adapt_positions


class SpatialReductionAttention(nn.Module):
    """Multi-head attention from every token to a reduced map (PVT, section 3.3).

    The reduction is a convolution of stride and kernel ``sr_ratio`` with LayerNorm: N queries meet
    about N / sr_ratio^2 keys. A map that sr_ratio does not divide is first padded with zeros on
    the right and at the bottom. A ratio of 1 is ordinary self-attention, which takes class tokens.
    """

    def __init__(self, dim: int, num_heads: int, sr_ratio: int, qkv_bias: bool, attn_drop: float,
                 proj_drop: float):
        super().__init__()
        check_heads(dim, num_heads)
        self.num_heads = num_heads
        self.sr_ratio = sr_ratio
        self.q = nn.Linear(dim, dim, bias=qkv_bias)
        self.kv = nn.Linear(dim, 2 * dim, bias=qkv_bias)
        self.attn_drop = attn_drop
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)
        if sr_ratio > 1:
            self.sr = nn.Conv2d(dim, dim, sr_ratio, sr_ratio)
            self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        """(B, T + H * W, C) to the same, size being H and W; T = 0 where sr_ratio > 1."""
        context = x
        if self.sr_ratio > 1:
            context = F.pad(tokens_to_map(x, *size),
                            (0, -size[1] % self.sr_ratio, 0, -size[0] % self.sr_ratio))
            context = self.norm(map_to_tokens(self.sr(context)))  # (B, ~ H * W / sr_ratio^2, C)
        q, k, v = (split_heads(t, self.num_heads)
                   for t in (self.q(x), *self.kv(context).chunk(2, dim=-1)))
        return self.proj_drop(self.proj(attend(q, k, v, self.attn_drop * self.training)))


class LocalPVTBlock(nn.Module):
    """Attention to the reduced map, then the feed-forward network with locality.

    As released, stochastic depth is for the attention alone.
    """

    def __init__(self, dim: int, num_heads: int, mlp_ratio: float, sr_ratio: int, qkv_bias: bool,
                 drop: float, attn_drop: float, drop_path: float, act: str, reduction: int):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = SpatialReductionAttention(dim, num_heads, sr_ratio, qkv_bias, attn_drop, drop)
        self.drop_path = DropPath(drop_path)
        self.conv = LocalityFeedForward(dim, mlp_ratio, act, reduction)

    def forward(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        """(B, T + H * W, C) to the same, size being H and W."""
        x = x + self.drop_path(self.attn(self.norm1(x), size))
        return self.conv.on_tokens(x, size)


@MODELS.register_module()
class LocalViTPVT(Backbone):
    """LocalViT on PVT as a backbone for dense prediction.

    Takes images (B, 3, H, W) of any H and W and returns one map (B, embed_dims[i], ceil(H / s),
    ceil(W / s)), s = 4 * 2^i, for each stage i in ``out_indices``. The last stage works on a class
    token too; it is not returned.

    Args:
        img_size: side of the square images that the position embeddings were learned for; for
            others they are resampled.
        embed_dims: channels of each stage.
        depths: blocks in each stage.
        num_heads: attention heads in each stage.
        mlp_ratios: hidden width of the feed-forward network over its input width, by stage.
        sr_ratios: how far each stage reduces the map that keys and values come from; 1 in the
            last stage, whose class token lies on no map.
        qkv_bias: bias of the query, key and value projections.
        drop_rate: dropout after the position embeddings and the attention's projection.
        attn_drop_rate: dropout of attention weights.
        drop_path_rate: stochastic depth of the last block; it grows linearly from 0 at the first.
        act: 'relu6', 'hs', 'hs+se', 'hs+eca' or 'hs+ecah' (``LocalityFeedForward``).
        reductions: squeeze factor of SE in each stage; None is the release's, embed_dims.
        out_indices: stages whose maps are returned. Stages behind the last of them are not run
            and get no gradient.
        frozen_stages: -1 freezes nothing, 0 the stem (the first stage's patches and positions), k
            the stem and the first k stages: their parameters get no gradient and they stay in
            eval mode.
        norm_eval: keep BatchNorm's statistics as they are.
        use_checkpoint: recompute each block in the backward pass instead of storing it.
        init_cfg: ``dict(type='Pretrained', checkpoint=FILE_OR_URL)`` starts from published
            weights.

    Raises:
        ValueError: arguments that do not fit together, or weights of another model.
    """

    def __init__(self,
                 img_size: int = 224,
                 embed_dims: Sequence[int] = (64, 128, 320, 512),
                 depths: Sequence[int] = (2, 2, 2, 2),
                 num_heads: Sequence[int] = (1, 2, 5, 8),
                 mlp_ratios: Sequence[float] = (8, 8, 4, 4),
                 sr_ratios: Sequence[int] = (8, 4, 2, 1),
                 qkv_bias: bool = True,
                 drop_rate: float = 0.,
                 attn_drop_rate: float = 0.,
                 drop_path_rate: float = 0.,
                 act: str = 'hs+se',
                 reductions: Sequence[int] | None = None,
                 out_indices: Sequence[int] = (0, 1, 2, 3),
                 frozen_stages: int = -1,
                 norm_eval: bool = False,
                 use_checkpoint: bool = False,
                 init_cfg: dict | None = None):
        super().__init__(init_cfg, norm_eval, use_checkpoint)
        num_stages = len(depths)
        reductions = embed_dims if reductions is None else reductions
        check_stage_lengths('LocalViTPVT', depths, embed_dims=embed_dims, num_heads=num_heads,
                            mlp_ratios=mlp_ratios, sr_ratios=sr_ratios, reductions=reductions)
        check_stages('LocalViTPVT', num_stages, out_indices, frozen_stages)
        if min(sr_ratios) < 1 or sr_ratios[-1] != 1:
            raise ValueError('LocalViTPVT: sr_ratios must be at least 1, and 1 in the last stage, '
                             f'whose class token lies on no map, not {tuple(sr_ratios)}')
        strides = [4 * 2**i for i in range(num_stages)]
        if img_size < strides[-1]:
            raise ValueError(f'LocalViTPVT: img_size must be at least the last stride '
                             f'{strides[-1]}, not {img_size}')
        self.out_indices = tuple(out_indices)
        self.frozen_stages = frozen_stages
        self.last = num_stages - 1
        self.grids = [(img_size // stride, ) * 2 for stride in strides]

        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dims[-1]))
        drop_path = iter(drop_path_rates(drop_path_rate, sum(depths)))
        for i, dim in enumerate(embed_dims):
            tokens = self.grids[i][0]**2 + (i == self.last)
            in_chans, patch_size = (embed_dims[i - 1], 2) if i else (3, 4)
            # the release's names, which count from 1
            self.add_module(f'patch_embed{i + 1}', PatchEmbed(patch_size, in_chans, dim))
            self.register_parameter(f'pos_embed{i + 1}',
                                    nn.Parameter(torch.zeros(1, tokens, dim)))
            self.add_module(f'pos_drop{i + 1}', nn.Dropout(drop_rate))
            self.add_module(f'block{i + 1}', nn.ModuleList(
                LocalPVTBlock(dim, num_heads[i], mlp_ratios[i], sr_ratios[i], qkv_bias, drop_rate,
                              attn_drop_rate, next(drop_path), act, reductions[i])
                for _ in range(depths[i])))
        init_like_vit(self)
        for i in range(num_stages):
            nn.init.trunc_normal_(self._embedding(i)[1], std=0.02)
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        self._finish()

    def _embedding(self, stage: int):
        """The patches, positions and dropout that lead into a stage, counted from 0."""
        return [getattr(self, f'{name}{stage + 1}')
                for name in ('patch_embed', 'pos_embed', 'pos_drop')]

    def _stage_parts(self, stage: int):
        yield from self._embedding(stage)
        yield getattr(self, f'block{stage + 1}')
        if stage == self.last:
            yield self.cls_token

    def _frozen(self):
        if self.frozen_stages >= 0:
            yield from self._embedding(0)
        for i in range(self.frozen_stages):
            yield from self._stage_parts(i)

    def _unused(self):
        for i in range(self.out_indices[-1] + 1, self.last + 1):
            yield from self._stage_parts(i)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Images (B, 3, H, W) to a tuple of maps, one for each of ``out_indices``."""
        outs = []
        for i in range(self.out_indices[-1] + 1):
            patch_embed, positions, pos_drop = self._embedding(i)
            x = patch_embed(x)  # (B, H, W, C)
            size = tuple(x.shape[1:3])
            x = x.flatten(1, 2)
            if i == self.last:
                x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1)
            x = pos_drop(x + resample_positions(positions, self.grids[i], size))
            for block in getattr(self, f'block{i + 1}'):
                x = self._run(block, x, size)
            x = tokens_to_map(x[:, int(i == self.last):], *size)
            if i in self.out_indices:
                outs.append(x.contiguous())
        return tuple(outs)

    def _adapt_weights(self, state, model):
        return adapt_positions(state, model, *(f'pos_embed{i + 1}' for i in range(self.last + 1)))
