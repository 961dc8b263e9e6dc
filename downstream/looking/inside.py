"""What goes on inside a backbone on an image: gates, modulators, affinities, receptive fields.

The networks are read from outside, through forward hooks. docs/look_inside.md
"""
import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from mmengine.dataset import pseudo_collate
from torch import Tensor, nn

from backbones.container import ContainerBlock
from backbones.focalnet import FocalNetBlock
from backbones.layers import map_to_tokens, split_heads, tokens_to_map
from backbones.localvit import Isotropic, LocalBlock
from backbones.localvit_pvt import LocalPVTBlock
from backbones.localvit_swin import LocalSwinBlock, from_windows
from backbones.localvit_tnt import TNTBlock
from backbones.ops import DepthwiseConv2d
from backbones.pretrained import kind_of, load_pretrained

from ..errors import UserError
from ..training.checkpoints import tensors_of
from .predictor import Predictor


@dataclass
class Map:
    """Numbers on the places of a feature map.

    Attributes:
        name: what they are.
        values: (h, w).
        group: those of one group in a block are to have one scale of colours.
        limits: the scale, where it is known beforehand.
        signed: zero is the middle of the scale.
    """
    name: str
    values: Tensor
    group: str = ''
    limits: tuple[float, float] | None = None
    signed: bool = False


TINY = np.finfo(np.float64).tiny
Seen = dict[nn.Module, tuple[tuple, Tensor]]  # what a module got and gave
Place = Callable[[tuple[int, int]], tuple[int, int]]  # of a map's H and W: the point's cell
Found = tuple[list[Map], dict[str, float]]  # maps; numbers to compare between blocks


@contextlib.contextmanager
def watching(modules) -> Iterator[Seen]:
    """Keep what modules get and give (of several calls, the last)."""
    seen = {}
    handles = [module.register_forward_hook(
        lambda module, args, output: seen.update({module: (args, output)})) for module in modules]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


# -- attention -----------------------------------------------------------------------------------

def attention_row(q: Tensor, k: Tensor, bias: Tensor | float = 0.) -> Tensor:
    """softmax(q k^T / sqrt(D) + bias) of one query, the mean of the heads.

    Args:
        q: (M, D).
        k: (M, N, D).
        bias: (M, N).

    Returns:
        (N, ), of sum 1.
    """
    scores = torch.einsum('md,mnd->mn', q, k) / q.shape[-1]**0.5 + bias
    return scores.softmax(-1).mean(0)


def token_rows(q: Tensor, k: Tensor, size, context, index: int) -> list[Map]:
    """Rows of attention among tokens: of a place and, if there is one, of the class token.

    Args:
        q, k: (M, T + H * W, D), (M, T + H' * W', D); T is 0 or 1.
        size, context: H and W; H' and W'.
        index: of the place, in H * W.
    """
    extra = q.shape[1] - size[0] * size[1]
    askers = {'attention of the point': extra + index}
    if extra:
        askers['attention of the class token'] = 0
    return [Map(name, attention_row(q[:, asker], k)[extra:].view(context))
            for name, asker in askers.items()]


def window_row(block: LocalSwinBlock, seen: Seen, place: Place) -> Map:
    """A row of attention inside a window, on the whole map: nothing is attended to outside."""
    attn, side = block.attn, block.window_size
    (x, shift, mask), _ = seen[block]
    size = tuple(x.shape[1:3])
    row, column = place(size)
    padded = [-(-length // side) * side for length in size]
    # where the cyclic shift brings the place: which window, and which place there
    row, column = (row - shift[0]) % padded[0], (column - shift[1]) % padded[1]
    window = row // side * (padded[1] // side) + column // side
    index = row % side * side + column % side
    q, k, _ = seen[attn.qkv][1][window][None].chunk(3, dim=-1)
    q, k = (split_heads(t, attn.num_heads)[0] for t in (q, k))  # (M, N, D)
    bias = attn.relative_position_bias_table[attn.relative_position_index[index]].T  # (M, N)
    if mask is not None:
        bias = bias + mask[window, 0, index]
    windows = seen[attn.qkv][1].new_zeros(padded[0] * padded[1] // side**2, side**2, 1)
    windows[window, :, 0] = attention_row(q[:, index], k, bias)
    values = from_windows(windows, side, tuple(padded)).roll(tuple(shift), (1, 2))
    return Map('attention of the point', values[0, :size[0], :size[1], 0])


def attention_of(block: nn.Module, seen: Seen, place: Place) -> list[Map]:
    """The attention of a LocalViT block."""
    if isinstance(block, LocalSwinBlock):
        return [window_row(block, seen, place)]
    size = context = tuple(seen[block][0][1])
    if isinstance(block, LocalPVTBlock):
        attn = block.attn
        q, k = seen[attn.q][1], seen[attn.kv][1].chunk(2, dim=-1)[0]
        context = tuple(-(-length // attn.sr_ratio) for length in size)
    elif isinstance(block, TNTBlock):
        attn = block.attn_out
        q, k = seen[attn.qk][1].chunk(2, dim=-1)
    else:
        attn = block.attn
        q, k, _ = seen[attn.qkv][1].chunk(3, dim=-1)
    row, column = place(size)
    q, k = (split_heads(t, attn.num_heads)[0] for t in (q, k))
    return token_rows(q, k, size, context, row * size[1] + column)


# -- families ------------------------------------------------------------------------------------

def focal_maps(block: FocalNetBlock, seen: Seen, place: Place) -> Found:
    """Gates of each level, as they act, and the modulator's magnitude |h(m)| over the channels."""
    modulation = block.modulation
    gates = seen[modulation.f][1].split(modulation.split, dim=-1)[2][0] * modulation.scale
    names = [*(f'gate of level {level + 1}' for level in range(modulation.focal_level)),
             'gate of the global level']
    maps = [Map(name, values, group='gates')
            for name, values in zip(names, gates.permute(2, 0, 1), strict=True)]
    numbers = {each.name: each.values.abs().mean().item() for each in maps}
    return [*maps, Map('modulator', seen[modulation.h][1][0].norm(dim=0))], numbers


def static_row(kernel: Tensor, size: tuple[int, int], cell: tuple[int, int]) -> Tensor:
    """A depthwise convolution's affinity of one place, (h, w): its kernel, there, else zero.

    Args:
        kernel: (k, k).
        size: h and w.
        cell: row and column of the place.
    """
    reach = len(kernel) // 2
    values = kernel.new_zeros([length + 2 * reach for length in size])
    values[cell[0]:cell[0] + len(kernel), cell[1]:cell[1] + len(kernel)] = kernel
    return values[reach:reach + size[0], reach:reach + size[1]]


def container_maps(block: ContainerBlock, seen: Seen, place: Place) -> Found:
    """Affinity of the point, static and dynamic, and how they are balanced.

    A static affinity is one a channel, a dynamic or learned one is one a head: their means.
    """
    size = tuple(seen[block.conv1][1].shape[2:])
    cell = place(size)
    index = cell[0] * size[1] + cell[1]
    if block.affinity == 'mlp':
        row = block.attn.matrix(size)[:, index].mean(0).view(size)
        return [Map('learned affinity of the point', row, signed=True)], {}
    maps, alpha = [], {'static': 0., 'dynamic': 1.}.get(block.affinity)
    if block.affinity == 'mixed':
        alpha = block.sa_weight.sigmoid().item()
    numbers = {'dynamic, as learned': alpha}
    if block.affinity != 'static':
        q, k, v = (split_heads(map_to_tokens(t), block.num_heads)
                   for t in seen[block.conv1][1].chunk(3, dim=1))
        dynamic = attention_row(q[0, :, index], k[0]).view(size)
        maps.append(Map('dynamic affinity of the point', dynamic))
    if block.affinity != 'dynamic':
        convolution = block.conv if block.affinity == 'mixed' else block.attn
        static = static_row(convolution.weight.mean((0, 1)), size, cell)
        maps.append(Map('static affinity of the point', static, signed=True))
    if block.affinity == 'mixed':
        maps.append(Map('both, as they are mixed', alpha * dynamic + (1 - alpha) * static,
                        signed=True))
        gathered = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        sizes = [alpha * tokens_to_map(gathered, *size)[0].norm(dim=0),
                 (1 - alpha) * seen[block.conv][1][0].norm(dim=0)]
        share = sizes[0] / (sizes[0] + sizes[1]).clamp(min=1e-12)
        maps.append(Map('share of the dynamic affinity', share, limits=(0., 1.)))
        numbers['dynamic, share of what is gathered here'] = share.mean().item()
    return maps, numbers


def local_maps(block: nn.Module, seen: Seen, place: Place) -> Found:
    """Attention, and beside it the activation behind the depthwise convolution."""
    activation = seen[block.conv.conv[5]][1][0].norm(dim=0)
    return [*attention_of(block, seen, place), Map('locality', activation)], {}


def taps_of(block: nn.Module) -> list[nn.Module]:
    """The modules of a block that its maps are computed from; the block is the last to be called.
    """
    if isinstance(block, FocalNetBlock):
        return [block.modulation.f, block.modulation.h, block]
    if isinstance(block, ContainerBlock):
        return [block.conv1, *([block.conv] if block.affinity == 'mixed' else []), block]
    attn = block.attn_out if isinstance(block, TNTBlock) else block.attn
    projections = [getattr(attn, name) for name in ('qkv', 'qk', 'q', 'kv') if hasattr(attn, name)]
    return [*projections, block.conv.conv[5], block]


MAPS = {FocalNetBlock: focal_maps, ContainerBlock: container_maps,
        **dict.fromkeys((LocalBlock, LocalPVTBlock, LocalSwinBlock, TNTBlock), local_maps)}


def blocks_of(backbone: nn.Module) -> dict[str, nn.Module]:
    """The blocks that can be looked into, by name, in the order in which they run."""
    return {name: module for name, module in backbone.named_modules() if type(module) in MAPS}


def chosen(backbone: nn.Module, names: list[str]) -> list[str]:
    """Of blocks, the last of each stage; of a backbone of one resolution, those that give maps."""
    if isinstance(backbone, Isotropic):
        return [name for name in names if int(name.split('.')[-1]) in backbone.out_indices]
    return list({name.rpartition('.')[0]: name for name in names}.values())


def look_into(backbone: nn.Module, image: Tensor, point: tuple[float, float]) -> dict[str, Found]:
    """Maps and numbers of every block that runs, by its name.

    Args:
        image: (1, 3, H, W) as the backbone takes it.
        point: x, y in its pixels.
    """
    def place(size):
        stride = stride_of(image.shape[2:], size)
        return tuple(min(int(at // stride), length - 1)
                     for at, length in zip(point[::-1], size, strict=True))

    found = {}
    blocks = blocks_of(backbone)
    with torch.no_grad(), contextlib.ExitStack() as stack:
        seen = stack.enter_context(watching(
            tap for block in blocks.values() for tap in taps_of(block)))
        for name, block in blocks.items():  # as soon as it has run: its tensors are large

            def read(block, args, output, name=name):
                found[name] = MAPS[type(block)](block, seen, place)
                seen.clear()

            stack.callback(block.register_forward_hook(read).remove)
        backbone(image)
    return found


def stride_of(image: tuple[int, int], size: tuple[int, int]) -> float:
    """Image pixels between the places of a map, whose last ones may reach beyond the image: a
    power of two, unless no such stride gives a map of that size.

    Args:
        image, size: H and W of the image and of the map.
    """
    least = max(image[0] / size[0], image[1] / size[1])
    stride = 2.**math.ceil(math.log2(least))
    fits = all(-(-full // stride) == part for full, part in zip(image, size, strict=True))
    return stride if fits else least


def upsampled(values: Tensor, image: tuple[int, int]) -> Tensor:
    """A map (h, w) for each pixel of an image of this H and W, bilinear; each place is the middle
    of the pixels that it stands for.
    """
    stride = stride_of(image, values.shape)
    size = [round(length * stride) for length in values.shape]
    large = F.interpolate(values[None, None].float(), size=size, mode='bilinear')[0, 0]
    return large[:image[0], :image[1]]


# -- receptive fields ----------------------------------------------------------------------------

@dataclass
class Field:
    """The effective receptive field of a unit of a map (Luo et al. 2016, arXiv 1701.04128).

    Attributes:
        gradient: (H, W) |d(sum of the unit's channels) / d(image)|, summed over the image's
            channels.
        stride: image pixels between the map's places.
    """
    gradient: np.ndarray
    stride: float

    @property
    def centre(self) -> tuple[float, float]:
        """Row and column of the centre of mass of the gradient's square, to half a pixel.

        Padded convolutions move it away from the pixels that a unit stands for, by up to half a
        stride. Without the square it would follow what lies far away: attention and global
        levels see a little of everything.
        """
        mass = self.gradient**2 + TINY
        return tuple(round(2 * at) / 2 for at in (
            np.average(np.arange(length) + 0.5, weights=mass.sum(1 - axis))
            for axis, length in enumerate(mass.shape)))

    def within(self) -> tuple[np.ndarray, np.ndarray]:
        """Sides, in pixels, of rising squares around the centre, and the share of the gradient's
        sum that each holds.
        """
        rows, columns = (np.abs(np.arange(length) + 0.5 - at) + 0.5 for length, at in
                         zip(self.gradient.shape, self.centre, strict=True))
        distance = np.maximum(rows[:, None], columns)
        sides, ring = np.unique(2 * distance, return_inverse=True)
        total = np.bincount(ring.ravel(), self.gradient.ravel().astype(np.float64))
        return sides, total.cumsum() / max(total.sum(), TINY)

    def side(self, share: float) -> float:
        """The side of the least such square with a share of the sum."""
        sides, shares = self.within()
        return float(sides[np.searchsorted(shares, min(share, shares[-1]))])


def receptive_fields(backbone: nn.Module, image: Tensor) -> list[Field]:
    """The effective receptive field of the middle unit of each map that a backbone returns.

    Behind a LayerNorm the sum of the channels is nearly the same whatever the image (exactly so
    with its first weights): where a map comes from one, it is the sum before it.

    Args:
        backbone: in eval mode.
        image: (1, 3, H, W) as the backbone takes it.
    """
    image = image.detach().clone().requires_grad_()
    fields = []
    with torch.enable_grad():
        with watching(module for module in backbone.modules()
                      if isinstance(module, nn.LayerNorm)) as seen:
            maps = backbone(image)
        maps = [before_norm(each, seen) for each in maps]
        seen.clear()
        for each in maps:
            rows, columns = each.shape[2:]
            gradient, = torch.autograd.grad(
                each[0, :, rows // 2, columns // 2].sum(), image, retain_graph=each is not maps[-1])
            fields.append(Field(gradient[0].abs().sum(0).double().cpu().numpy(),
                                stride_of(image.shape[2:], (rows, columns))))
    return fields


def before_norm(output: Tensor, seen: Seen) -> Tensor:
    """What a map (B, C, H, W) was before the LayerNorm, of those seen, that it comes from."""
    for (x, *_), y in reversed(seen.values()):
        if (y.numel(), y.shape[-1]) == (output.numel(), output.shape[1]) and torch.equal(
                y.reshape(len(output), -1, y.shape[-1]), map_to_tokens(output)):
            return tokens_to_map(x.reshape(len(output), -1, x.shape[-1]), *output.shape[2:])
    return output


# -- a model and an image ------------------------------------------------------------------------

@dataclass
class Look:
    """What was seen of an image.

    Attributes:
        image: (h, w, 3) RGB uint8, as large as the network got it, without padding.
        padded: H and W of what the network got.
        point: x, y in pixels of ``image``.
        blocks: maps and numbers of each block, by name.
        fields: of each map that the backbone returns.
    """
    image: np.ndarray = field(repr=False)
    padded: tuple[int, int]
    point: tuple[float, float]
    blocks: dict[str, Found] = field(repr=False)
    fields: list[Field] = field(repr=False)


class Insider(Predictor):
    """A model to look into. A file of ImageNet weights fills its backbone alone, which suffices."""

    def fill(self, model, content, source, allow_partial):
        self.backbone = getattr(model, 'backbone', None)
        if not isinstance(self.backbone, nn.Module):
            raise UserError(f'{type(model).__name__} has no backbone to look into')
        model.requires_grad_(False)  # gradients here are those of images
        for module in self.backbone.modules():  # recomputing works in one backward pass only
            for name in ('use_checkpoint', 'with_cp'):  # ours, mmdet's
                if getattr(module, name, False):
                    setattr(module, name, False)
        state = tensors_of(content['state_dict'])
        if any(name.startswith('backbone.') for name in state):
            super().fill(model, content, source, allow_partial)
        else:
            load_pretrained(self.backbone, source, getattr(self.backbone, '_adapt_weights', None),
                            allow_partial)
            self.notes.append(f'{source} has weights of a backbone alone, which are all that is '
                              'looked at')
        self.variant = kind_of(self.backbone.state_dict())

    def look(self, image, point: tuple[float, float] | None = None) -> Look:
        """Look at what the backbone does with an image.

        Args:
            image: as a Predictor takes it.
            point: x, y in its pixels; None is the middle.

        Raises:
            UserError: the image cannot be read, or the point lies outside.
        """
        rgb, path, inputs = self.prepare(image)
        height, width = rgb.shape[:2]
        x, y = point or (width / 2, height / 2)
        if not (0 <= x < width and 0 <= y < height):
            raise UserError(f'--point {x:g} {y:g} is not in {path or "the image"}, which has '
                            f'{width} x {height} pixels, from 0 0')
        with self.in_scope():
            data = self.model.data_preprocessor(pseudo_collate([inputs]), False)
        batch, (rows, columns) = data['inputs'], data['data_samples'][0].img_shape[:2]
        point = x * columns / width, y * rows / height
        blocks = look_into(self.backbone, batch, point)
        return Look(resized(rgb, (columns, rows)), tuple(batch.shape[2:]), point, blocks,
                    receptive_fields(self.backbone, batch))


def resized(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """An image of this width and height."""
    smaller = size[0] < image.shape[1]
    return cv2.resize(image, size, interpolation=cv2.INTER_AREA if smaller else cv2.INTER_LINEAR)


def kernels_of(block: nn.Module) -> dict[str, Tensor]:
    """The depthwise kernels (C, k, k) of a block, by the names of their convolutions."""
    return {name: module.weight.detach()[:, 0] for name, module in block.named_modules()
            if isinstance(module, DepthwiseConv2d)}
