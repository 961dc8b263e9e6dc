"""LocalViT: Bringing Locality to Vision Transformers (Li et al., arXiv 2104.05707), on DeiT.

A transformer's feed-forward network is, seen on the map of its tokens, two 1 x 1 convolutions. Put
a depthwise convolution between them and it becomes the inverted residual of mobile networks: each
token now also meets its neighbours (section 3.2). The other files named localvit_* put the same
block into PVT, Swin, TNT and T2T-ViT.
"""
import re
from collections.abc import Sequence
from math import log2

import torch
from mmengine.registry import MODELS
from torch import Tensor, nn

from .base import Backbone
from .layers import (
    Attention,
    DropPath,
    PatchEmbed,
    check_stages,
    drop_path_rates,
    init_like_vit,
    map_to_tokens,
    resample_positions,
    tokens_to_map,
)
from .ops import DepthwiseConv2d
from .pretrained import KINDS

ACTS = ('relu6', 'hs', 'hs+se', 'hs+eca', 'hs+ecah')


class SELayer(nn.Module):
    """Squeeze and excitation: each channel's gate follows from all channels' means.

    Args:
        channels: channels C.
        reduction: C over the width of the hidden layer.
    """

    def __init__(self, channels: int, reduction: int):
        super().__init__()
        if not 1 <= reduction <= channels:
            raise ValueError(f'reduction must be from 1 to the hidden width {channels}, '
                             f'not {reduction}')
        self.fc = nn.Sequential(
            nn.Linear(channels, channels // reduction), nn.ReLU(inplace=True),
            nn.Linear(channels // reduction, channels), nn.Hardsigmoid())

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, C, H, W)."""
        gate = self.fc(x.mean((2, 3)))  # (B, C)
        return x * gate[:, :, None, None]


class ECALayer(nn.Module):
    """Efficient channel attention: each channel's gate follows from its neighbours' means.

    The neighbourhood grows with the logarithm of the width (Wang et al., arXiv 1910.03151,
    equation 12 with gamma = 2, b = 1).

    Args:
        channels: channels C.
        hard: gate with the piecewise linear h-sigmoid ('ecah') instead of the sigmoid ('eca').
    """

    def __init__(self, channels: int, hard: bool):
        super().__init__()
        reach = int(abs(log2(channels) + 1) / 2)
        kernel_size = reach if reach % 2 else reach + 1
        self.conv = nn.Conv1d(1, 1, kernel_size, padding=kernel_size // 2, bias=False)
        self.gate = nn.Hardsigmoid() if hard else nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, C, H, W)."""
        mean = x.mean((2, 3))[:, None]  # (B, 1, C)
        gate = self.gate(self.conv(mean))[:, 0]  # (B, C)
        return x * gate[:, :, None, None]


class LocalityFeedForward(nn.Module):
    """The feed-forward network with locality, on the map of the tokens (paper, section 3.2).

    x + conv1x1(gate(depthwise3x3(conv1x1(x)))), every convolution with BatchNorm, the first two
    with the activation.

    Args:
        dim: channels C of the map.
        expand_ratio: hidden width over C.
        act: 'relu6' or 'hs' (h-swish); '+se', '+eca' or '+ecah' adds a channel gate.
        reduction: squeeze factor of SE.

    Raises:
        ValueError: another act, or a reduction beyond the hidden width.
    """

    def __init__(self, dim: int, expand_ratio: float = 4., act: str = 'hs+se',
                 reduction: int = 4):
        super().__init__()
        if act not in ACTS:
            raise ValueError(f'act must be one of {", ".join(ACTS)}, not {act!r}')
        hidden = int(dim * expand_ratio)
        act, _, gate = act.partition('+')
        act = nn.ReLU6 if act == 'relu6' else nn.Hardswish
        layers = [
            nn.Conv2d(dim, hidden, 1, bias=False), nn.BatchNorm2d(hidden), act(),
            DepthwiseConv2d(hidden, 3, bias=False), nn.BatchNorm2d(hidden), act(),
        ]
        if gate == 'se':
            layers.append(SELayer(hidden, reduction))
        elif gate:
            layers.append(ECALayer(hidden, hard=gate == 'ecah'))
        layers += [nn.Conv2d(hidden, dim, 1, bias=False), nn.BatchNorm2d(dim)]
        self.conv = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, C, H, W)."""
        return x + self.conv(x)

    def on_tokens(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        """(B, T + H * W, C) to the same: the first T (class tokens) are passed through."""
        extra = x.shape[1] - size[0] * size[1]
        patches = map_to_tokens(self(tokens_to_map(x[:, extra:], *size)))
        return torch.cat([x[:, :extra], patches], dim=1) if extra else patches


class LocalBlock(nn.Module):
    """Self-attention among all tokens, then the feed-forward network with locality.

    As released, stochastic depth is for the attention alone.
    """

    def __init__(self, dim: int, num_heads: int, mlp_ratio: float, qkv_bias: bool, drop: float,
                 attn_drop: float, drop_path: float, act: str, reduction: int):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = Attention(dim, num_heads, qkv_bias, attn_drop, drop)
        self.drop_path = DropPath(drop_path)
        self.conv = LocalityFeedForward(dim, mlp_ratio, act, reduction)

    def forward(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        """(B, 1 + H * W, C) to the same, size being H and W."""
        x = x + self.drop_path(self.attn(self.norm1(x)))
        return self.conv.on_tokens(x, size)


class Isotropic(Backbone):
    """A transformer of one resolution: what LocalViT on DeiT, TNT and T2T-ViT share.

    A family gives ``blocks``, each called as ``block(x, size)``; ``_stem``, from images to the
    first block's x and the size (H, W) of the map; where x is more than the tokens, ``_patches``,
    from any x to the patch tokens (B, H * W, C); and for ``_place``, ``cls_token``, ``pos_drop``
    and the ``grid`` that positions were learned for.

    Args:
        embed_dim: channels C of the tokens.
        depth: number of blocks.
        out_indices: blocks whose maps are returned.
        frozen_stages: -1 freezes nothing, 0 the stem, k the stem and the first k blocks.
        final_norm: LayerNorm on the map of the last block, if that is returned.
        norm_eps: epsilon of that LayerNorm.
    """

    def __init__(self, embed_dim: int, depth: int, out_indices: Sequence[int],
                 frozen_stages: int, final_norm: bool, norm_eps: float, norm_eval: bool,
                 use_checkpoint: bool, init_cfg: dict | None):
        super().__init__(init_cfg, norm_eval, use_checkpoint)
        check_stages(type(self).__name__, depth, out_indices, frozen_stages)
        self.out_indices = tuple(out_indices)
        self.frozen_stages = frozen_stages
        self.last = depth - 1
        if final_norm and self.last in self.out_indices:
            self.norm = nn.LayerNorm(embed_dim, eps=norm_eps)
        else:
            self.norm = nn.Identity()

    def _stem(self, x: Tensor):
        raise NotImplementedError

    def _patches(self, x) -> Tensor:
        return x[:, 1:]  # behind the class token

    def _place(self, patches: Tensor, positions: Tensor, size: tuple[int, int]) -> Tensor:
        """(B, H * W, C) to (B, 1 + H * W, C): the class token in front, positions added."""
        x = torch.cat([self.cls_token.expand(len(patches), -1, -1), patches], dim=1)
        return self.pos_drop(x + resample_positions(positions, self.grid, size))

    def _stem_parts(self):
        """Modules and parameters before the first block."""
        raise NotImplementedError

    def _frozen(self):
        if self.frozen_stages >= 0:
            yield from self._stem_parts()
        yield from self.blocks[:max(self.frozen_stages, 0)]
        if self.frozen_stages > self.last:
            yield self.norm

    def _unused(self):
        yield from self.blocks[self.out_indices[-1] + 1:]

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Images (B, 3, H, W) to a tuple of maps, one for each of ``out_indices``."""
        x, size = self._stem(x)
        outs = []
        for i, block in enumerate(self.blocks[:self.out_indices[-1] + 1]):
            x = self._run(block, x, size)
            if i in self.out_indices:
                out = self._patches(x)
                if i == self.last:
                    out = self.norm(out)
                outs.append(tokens_to_map(out, *size).contiguous())
        return tuple(outs)


@MODELS.register_module()
class LocalViT(Isotropic):
    """LocalViT on DeiT as a backbone for dense prediction.

    Takes images (B, 3, H, W) of any H and W and returns one map (B, embed_dim, ceil(H / p),
    ceil(W / p)), p = patch_size, for each block in ``out_indices``. A pyramid for FPN heads comes
    from a neck, mmseg's ``Feature2Pyramid`` (docs/backbone.md).

    Args:
        img_size: side of the square images that the position embeddings were learned for; for
            others they are resampled.
        patch_size: side of a patch.
        embed_dim: channels of the tokens.
        depth: number of blocks.
        num_heads: attention heads.
        mlp_ratio: hidden width of the feed-forward network over its input width.
        qkv_bias: bias of the query, key and value projection.
        drop_rate: dropout after the position embeddings and the attention's projection.
        attn_drop_rate: dropout of attention weights.
        drop_path_rate: stochastic depth of the last block; it grows linearly from 0 at the first.
        act: 'relu6', 'hs', 'hs+se', 'hs+eca' or 'hs+ecah' (``LocalityFeedForward``).
        reduction: squeeze factor of SE.
        out_indices: blocks whose maps are returned. Blocks behind the last of them are not run
            and get no gradient.
        frozen_stages: -1 freezes nothing, 0 the stem, k the stem and the first k blocks: their
            parameters get no gradient and they stay in eval mode.
        final_norm: the classifier's LayerNorm on the map of the last block.
        norm_eval: keep BatchNorm's statistics as they are.
        use_checkpoint: recompute each block in the backward pass instead of storing it.
        init_cfg: ``dict(type='Pretrained', checkpoint=FILE_OR_URL)`` starts from published
            weights.

    Raises:
        ValueError: arguments that do not fit together, or weights of another model.
    """

    def __init__(self,
                 img_size: int = 224,
                 patch_size: int = 16,
                 embed_dim: int = 192,
                 depth: int = 12,
                 num_heads: int = 4,
                 mlp_ratio: float = 4.,
                 qkv_bias: bool = True,
                 drop_rate: float = 0.,
                 attn_drop_rate: float = 0.,
                 drop_path_rate: float = 0.,
                 act: str = 'hs+se',
                 reduction: int = 192,
                 out_indices: Sequence[int] = (2, 5, 8, 11),
                 frozen_stages: int = -1,
                 final_norm: bool = True,
                 norm_eval: bool = False,
                 use_checkpoint: bool = False,
                 init_cfg: dict | None = None):
        super().__init__(embed_dim, depth, out_indices, frozen_stages, final_norm, 1e-6,
                         norm_eval, use_checkpoint, init_cfg)
        self.grid = (img_size // patch_size, ) * 2
        self.patch_embed = PatchEmbed(patch_size, 3, embed_dim, norm=False)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + self.grid[0]**2, embed_dim))
        self.pos_drop = nn.Dropout(drop_rate)
        self.blocks = nn.ModuleList(
            LocalBlock(embed_dim, num_heads, mlp_ratio, qkv_bias, drop_rate, attn_drop_rate, rate,
                       act, reduction) for rate in drop_path_rates(drop_path_rate, depth))
        init_like_vit(self)
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        self._finish()

    def _stem_parts(self):
        yield from (self.patch_embed, self.cls_token, self.pos_embed, self.pos_drop)

    def _stem(self, x):
        x = self.patch_embed(x)  # (B, H, W, C)
        size = tuple(x.shape[1:3])
        return self._place(x.flatten(1, 2), self.pos_embed, size), size

    def _adapt_weights(self, state, model):
        return adapt_positions(state, model, 'pos_embed')


def adapt_positions(state: dict[str, Tensor], model: dict[str, Tensor], *names: str):
    """Resample a file's position embeddings of square grids to the model's square grids.

    Args:
        state: the file's entries.
        model: the model's entries.
        names: of the embeddings, (1, T + S * S, C).

    Returns:
        (adapted entries, {name: what was done to it}).
    """
    adapted, rules = dict(state), {}
    for name in names:
        if name not in state or name not in model or state[name].shape == model[name].shape:
            continue
        old, new = (int(t[name].shape[1]**0.5) for t in (state, model))
        extra = state[name].shape[1] - old**2
        if (extra, state[name].shape[2]) != (model[name].shape[1] - new**2, model[name].shape[2]):
            continue  # another network: reported as a mismatch
        adapted[name] = resample_positions(state[name], (old, old), (new, new))
        rules[name] = f'positions resampled {old} x {old} -> {new} x {new}'
    return adapted, rules


# An entry that only one of the transformers below LocalViT has, tried in this order.
HOSTS = {'pixel_pos': 'TNT', 'tokens_to_token.project.weight': 'T2T-ViT', 'pos_embed1': 'PVT',
         'layers.0.blocks.0.attn.relative_position_bias_table': 'Swin', 'pos_embed': 'DeiT'}


def kind_of_localvit(state: dict[str, Tensor]) -> str | None:
    """'LocalViT-T', 'LocalViT on PVT ..' and the like, from tensors under our names."""
    host = next((host for name, host in HOSTS.items() if name in state), None)
    if host is None:
        return None
    expand = next((value for name, value in state.items()
                   if re.match(r'(layers\.0\.)?blocks?1?\.0\.conv\.conv\.0\.weight', name)), None)
    if expand is None:
        return f'{host} without locality'
    hidden, dim = expand.shape[:2]
    squeeze = state.get('blocks.0.conv.conv.6.fc.0.weight')  # of DeiT's channel gate
    reduction = squeeze is not None and hidden // len(squeeze)
    name = {(192, 192): 'LocalViT-T', (192, 4): 'LocalViT-T-SE4', (384, 384): 'LocalViT-S'}.get(
        (dim, reduction)) if host == 'DeiT' else None
    return name or f'LocalViT on {host}, {dim} channels'


KINDS.append(kind_of_localvit)
