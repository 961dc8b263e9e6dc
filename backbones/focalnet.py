"""FocalNet: Focal Modulation Networks (Yang et al., NeurIPS 2022, arXiv 2203.11926).

Where self-attention first relates each query to all keys and then sums values, focal modulation
first sums the context around each place, at several ranges, and then lets the query meet the
result once:

    y_i = q(x_i) * h(sum_l g_i^l z_i^l)                                          (section 3.2)

Maps are (N, H, W, C) inside, (N, C, H, W) at the outputs. Parameter and argument names are those
of the authors' releases.
"""
import re
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor, nn

from .base import Staged
from .layers import (
    DropPath,
    Mlp,
    PatchEmbed,
    Stage,
    check_stage_lengths,
    check_stages,
    drop_path_rates,
    init_like_vit,
)
from .ops import DepthwiseConv2d
from .pretrained import KINDS, NAMINGS


class FocalModulation(nn.Module):
    """Focal modulation of a map (paper, section 3.2, figure 2).

    Context is gathered by a chain of depthwise convolutions, so that level l sees a window of
    1 + sum_l (k_l - 1) pixels with k_l = focal_window + 2 l (l = 0 .. focal_level - 1); one last
    level is the mean of the whole map.

    Args:
        dim: channels C.
        focal_level: number L of convolutional levels.
        focal_window: kernel size of the first level.
        proj_drop: dropout after the output projection.
        use_postln_in_modulation: a LayerNorm before the output projection (the H models).
        normalize_modulator: divide the modulator by the number of levels L + 1 (the fl4 models).
    """

    def __init__(self, dim: int, focal_level: int, focal_window: int, proj_drop: float = 0.,
                 use_postln_in_modulation: bool = False, normalize_modulator: bool = False):
        super().__init__()
        self.focal_level = focal_level
        self.scale = 1. / (focal_level + 1) if normalize_modulator else 1.
        self.split = (dim, dim, focal_level + 1)
        self.f = nn.Linear(dim, sum(self.split))
        self.focal_layers = nn.ModuleList(
            nn.Sequential(DepthwiseConv2d(dim, focal_window + 2 * level, bias=False), nn.GELU())
            for level in range(focal_level))
        self.act = nn.GELU()
        self.h = nn.Conv2d(dim, dim, 1)
        self.ln = nn.LayerNorm(dim) if use_postln_in_modulation else nn.Identity()
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: Tensor) -> Tensor:
        """(N, H, W, C) to (N, H, W, C)."""
        q, z, gates = self.f(x).split(self.split, dim=-1)
        z = z.permute(0, 3, 1, 2).contiguous()  # (N, C, H, W): the layout depthwise kernels like
        gates = gates.permute(0, 3, 1, 2) * self.scale  # (N, L + 1, H, W)
        modulator = 0.
        for level, focal_layer in enumerate(self.focal_layers):
            z = focal_layer(z)
            modulator = modulator + z * gates[:, level:level + 1]
        z = self.act(z.mean((2, 3), keepdim=True))  # (N, C, 1, 1)
        modulator = modulator + z * gates[:, self.focal_level:]
        y = q * self.h(modulator).permute(0, 2, 3, 1)
        return self.proj_drop(self.proj(self.ln(y)))


class FocalNetBlock(nn.Module):
    """Modulation and MLP, each a residual branch.

    The norm precedes the branch's operation, or follows it with ``use_postln``.
    """

    def __init__(self, dim: int, mlp_ratio: float, drop: float, drop_path: float,
                 use_layerscale: bool, layerscale_value: float, use_postln: bool, **modulation):
        super().__init__()
        self.use_postln = use_postln
        self.norm1 = nn.LayerNorm(dim)
        self.modulation = FocalModulation(dim, proj_drop=drop, **modulation)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), drop)
        self.drop_path = DropPath(drop_path)
        self.gamma_1 = self.gamma_2 = 1.
        if use_layerscale:
            self.gamma_1 = nn.Parameter(torch.full((dim,), layerscale_value))
            self.gamma_2 = nn.Parameter(torch.full((dim,), layerscale_value))

    def forward(self, x: Tensor) -> Tensor:
        """(N, H, W, C) to (N, H, W, C)."""
        if self.use_postln:
            x = x + self.drop_path(self.gamma_1 * self.norm1(self.modulation(x)))
            return x + self.drop_path(self.gamma_2 * self.norm2(self.mlp(x)))
        x = x + self.drop_path(self.gamma_1 * self.modulation(self.norm1(x)))
        return x + self.drop_path(self.gamma_2 * self.mlp(self.norm2(x)))


@MODELS.register_module()
class FocalNet(Staged):
    """FocalNet as a backbone for dense prediction.

    Takes images (N, 3, H, W) of any H and W and returns one map (N, C_i, ceil(H / s_i),
    ceil(W / s_i)) for each stage i in ``out_indices``, C_i = embed_dim * 2^i, s_i = 4 * 2^i.

    Args:
        embed_dim: channels of the first stage.
        depths: blocks in each stage.
        mlp_ratio: hidden width of the MLP over its input width.
        drop_rate: dropout after the stem, the modulation and in the MLP.
        drop_path_rate: stochastic depth of the last block; it grows linearly from 0 at the first.
        patch_norm: LayerNorm after the stem.
        out_indices: stages whose maps are returned; each has its own LayerNorm (norm0 ..). Stages
            behind the last of them are not run and get no gradient.
        frozen_stages: -1 freezes nothing, 0 the stem, k the stem and the first k stages: their
            parameters get no gradient and they stay in eval mode.
        focal_levels: convolutional levels L in each stage.
        focal_windows: first level's kernel size in each stage.
        use_conv_embed: overlapping stem (7 x 7) and downsampling (3 x 3).
        use_layerscale: scale each residual branch by a learned vector.
        layerscale_value: what that vector starts from.
        use_postln: norm after modulation and MLP instead of before.
        use_postln_in_modulation: LayerNorm inside the modulation.
        normalize_modulator: divide the modulator by the number of levels.
        use_checkpoint: recompute each block in the backward pass instead of storing it.
        init_cfg: ``dict(type='Pretrained', checkpoint=FILE_OR_URL)`` starts from published weights
            (classification kernels and gates are adapted); a checkpoint of None, or no init_cfg,
            from random ones.

    Raises:
        ValueError: an argument that does not fit the number of stages, or weights of another model.
    """

    def __init__(self,
                 embed_dim: int = 96,
                 depths: Sequence[int] = (2, 2, 6, 2),
                 mlp_ratio: float = 4.,
                 drop_rate: float = 0.,
                 drop_path_rate: float = 0.3,
                 patch_norm: bool = True,
                 out_indices: Sequence[int] = (0, 1, 2, 3),
                 frozen_stages: int = -1,
                 focal_levels: Sequence[int] = (3, 3, 3, 3),
                 focal_windows: Sequence[int] = (9, 9, 9, 9),
                 use_conv_embed: bool = False,
                 use_layerscale: bool = False,
                 layerscale_value: float = 1e-4,
                 use_postln: bool = False,
                 use_postln_in_modulation: bool = False,
                 normalize_modulator: bool = False,
                 use_checkpoint: bool = False,
                 init_cfg: dict | None = None):
        super().__init__(init_cfg, use_checkpoint=use_checkpoint)
        num_stages = len(depths)
        check_stage_lengths('FocalNet', depths, focal_levels=focal_levels,
                            focal_windows=focal_windows)
        check_stages('FocalNet', num_stages, out_indices, frozen_stages)
        self.out_indices = tuple(out_indices)
        self.frozen_stages = frozen_stages

        dims = [embed_dim * 2**i for i in range(num_stages)]
        # Kernel size and padding. The released L, XL and H weights were trained with a stem
        # padding of 2, though the authors' detection code says 3.
        stem, downsampling = ((7, 2), (3, 1)) if use_conv_embed else ((4, 0), (2, 0))
        self.patch_embed = PatchEmbed(4, 3, embed_dim, *stem, norm=patch_norm)
        self.pos_drop = nn.Dropout(drop_rate)
        drop_path = iter(drop_path_rates(drop_path_rate, sum(depths)))
        self.layers = nn.ModuleList()
        for i, dim in enumerate(dims):
            blocks = [
                FocalNetBlock(
                    dim, mlp_ratio, drop_rate, next(drop_path), use_layerscale, layerscale_value,
                    use_postln, focal_level=focal_levels[i], focal_window=focal_windows[i],
                    use_postln_in_modulation=use_postln_in_modulation,
                    normalize_modulator=normalize_modulator) for _ in range(depths[i])
            ]
            downsample = (PatchEmbed(2, dim, 2 * dim, *downsampling)
                          if i < num_stages - 1 else None)
            self.layers.append(Stage(blocks, downsample))
        for i in self.out_indices:
            self.add_module(f'norm{i}', nn.LayerNorm(dims[i]))
        init_like_vit(self)
        self._finish()

    def _adapt_weights(self, state, model):
        return adapt_focalnet_weights(state, model)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Images (N, 3, H, W) to a tuple of maps, one for each of ``out_indices``."""
        x = self.pos_drop(self.patch_embed(x))
        outs = []
        for i in range(self.out_indices[-1] + 1):
            if i > 0:
                x = self.layers[i - 1].downsample(x.permute(0, 3, 1, 2))
            for block in self.layers[i].blocks:
                x = self._run(block, x)
            if i in self.out_indices:
                out = getattr(self, f'norm{i}')(x)
                outs.append(out.permute(0, 3, 1, 2).contiguous())
        return tuple(outs)


def adapt_focalnet_weights(state: dict[str, Tensor], model: dict[str, Tensor]):
    """Fit ImageNet weights to a detection FocalNet, which has larger kernels and maybe more levels.

    Depthwise kernels are padded with zeros around the centre, which changes nothing in what the
    network computes, or cropped to it. The rows of ``modulation.f`` are query, context, one gate
    a level and the global gate: gates of levels that the file lacks are zero, and the global one,
    always the last, keeps its place at the end.

    Args:
        state: the file's entries under our names.
        model: the model's entries.

    Returns:
        (adapted entries, {name: what was done to it}).
    """
    adapted, rules = dict(state), {}
    for name, value in state.items():
        if name not in model or model[name].shape == value.shape:
            continue
        target = model[name]
        if '.focal_layers.' in name and value.shape[:2] == target.shape[:2]:
            margin = (target.shape[-1] - value.shape[-1]) // 2
            adapted[name] = F.pad(value, (margin,) * 4)  # a negative margin crops
            rules[name] = (f'kernel {"padded" if margin > 0 else "cropped"} '
                           f'{value.shape[-1]} -> {target.shape[-1]}')
        elif '.modulation.f.' in name and value.shape[1:] == target.shape[1:]:
            extra = len(target) - len(value)
            if extra < 0:
                continue  # a file with more levels is another network: reported as a mismatch
            zeros = value.new_zeros(extra, *value.shape[1:])
            adapted[name] = torch.cat([value[:-1], zeros, value[-1:]])
            rules[name] = f'{extra} gate{"s" * (extra > 1)} added'
    return adapted, rules


# Names in other libraries and here, all applied in turn. timm's downsampling is the first module
# of the stage that it leads to.
TIMM_NAMES = (
    (r'^stem\.', 'patch_embed.'),
    (r'^layers\.(\d+)\.downsample\.', lambda found: f'layers.{int(found[1]) - 1}.downsample.'),
    (r'\.norm([12])_post\.', r'.norm\1.'),  # with post-norm
    (r'\.ls([12])\.gamma$', r'.gamma_\1'),
    (r'\.modulation\.norm\.', '.modulation.ln.'),
    (r'^head\.fc\.', 'head.'),
)
TRANSFORMERS_NAMES = (
    (r'^focalnet\.', ''),
    (r'^embeddings\.patch_embeddings\.', 'patch_embed.'),
    (r'^embeddings\.norm\.', 'patch_embed.norm.'),
    (r'^encoder\.stages\.(\d+)\.layers\.', r'layers.\1.blocks.'),
    (r'^encoder\.stages\.', 'layers.'),
    (r'\.projection_in\.', '.f.'),
    (r'\.projection_context\.', '.h.'),
    (r'\.projection_out\.', '.proj.'),
    (r'\.modulation\.layernorm\.', '.modulation.ln.'),
    (r'^(patch_embed|layers\.\d+\.downsample)\.projection\.', r'\1.proj.'),
    (r'^layernorm\.', 'norm.'),
    (r'^classifier\.', 'head.'),
)
LINEAR = re.compile(r'\.(modulation\.(f|proj)|mlp\.fc[12])\.weight$')


def name_focalnet_weights(state: dict[str, Tensor]):
    """Translate timm's and Hugging Face transformers' names.

    timm computes in NCHW: its linear layers are 1 x 1 convolutions.

    Args:
        state: the file's entries.

    Returns:
        (entries under our names, the library's name), or None where they have other names.
    """
    if 'stem.proj.weight' in state and 'layers.0.blocks.0.modulation.f.weight' in state:
        library, names = 'timm', TIMM_NAMES
    elif any(name.endswith('.modulation.projection_in.weight') for name in state):
        library, names = 'transformers', TRANSFORMERS_NAMES
    else:
        return None
    renamed = {}
    for name, value in state.items():
        for pattern, ours in names:
            name = re.sub(pattern, ours, name)
        renamed[name] = value.flatten(1) if LINEAR.search(name) else value
    return renamed, library


# Channels of the first stage and number of blocks in the third.
SIZES = {(96, 6): 'T', (96, 18): 'S', (128, 18): 'B', (192, 18): 'L', (256, 18): 'XL',
         (352, 18): 'H'}


def kind_of_focalnet(state: dict[str, Tensor]) -> str | None:
    """'FocalNet-T lrf (first kernel 9)' and the like, from tensors under our names."""
    gates = state.get('layers.0.blocks.0.modulation.f.weight')
    kernel = state.get('layers.0.blocks.0.modulation.focal_layers.0.0.weight')
    if gates is None or kernel is None:
        return None
    dim = gates.shape[1]
    blocks = sum(bool(re.fullmatch(r'layers\.2\.blocks\.\d+\.mlp\.fc1\.weight', name))
                 for name in state)
    levels = len(gates) - 2 * dim - 1
    size = SIZES.get((dim, blocks))
    name = f'FocalNet-{size}' if size else f'FocalNet ({dim} channels, {blocks} blocks in stage 3)'
    field = {2: 'srf', 3: 'lrf'}.get(levels) if size in ('T', 'S', 'B') else None
    return f'{name} {field or f"fl{levels}"} (first kernel {kernel.shape[-1]})'


NAMINGS.append(name_focalnet_weights)
KINDS.append(kind_of_focalnet)
