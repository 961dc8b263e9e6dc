"""What the backbones of other libraries share: any image size, frozen stages, checkpointing.

A wrapper (``from_timm.py``, ``from_transformers.py``) says how its library builds a network and
calls it. All else is found out by running that network on the meta device, where it costs neither
memory nor time: which maps it gives, at which strides, and which parameters these depend on.
"""
import difflib
import importlib
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial

import torch
import torch.nn.functional as F
from mmengine.logging import print_log
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .base import PROBE, Backbone, StatisticsUntouched, maps_of
from .layers import check_stages
from .pretrained import first_line

# What was found out about networks: building one again, with other stages frozen, is quick.
FOUND: dict[tuple, object] = {}
WANTED = 4, 8, 16, 32  # the strides that are returned where nothing else is asked for


class Wrapped(Backbone):
    """A network of another library as a backbone: images (N, 3, H, W) to a tuple of maps.

    Map i is (N, channels[i], ceil(H / strides[i]), ceil(W / strides[i])) for any H and W: images
    are padded with zeros, on the right and at the bottom, to a whole number of the coarsest
    stride, and maps are cut. Where patches are no power of two (DINOv2's 14), the image is
    resampled so that the strides are (16).

    Stages are counted from 0, which has stride 4; what is finer counts as the stem. A transformer
    of one resolution has its blocks for stages; a neck, ``SimplePyramid``, makes a pyramid.

    Args:
        name: of the network, for messages.
        out_indices: stages whose maps are returned; None: the last of each stride from 4 to 32,
            or four blocks at equal distances, the last among them.
        frozen_stages: -1 freezes nothing, 0 the stem, k the stem and the first k stages.
        drop_path_rate: stochastic depth of the last block; None: as the network has it.
        norm_eval: keep BatchNorm's statistics as they are.
        use_checkpoint: recompute each block in the backward pass instead of storing it.
        pretrained: whether, or from where, ``init_weights`` loads published weights.
        init_cfg: ``dict(type='Pretrained', checkpoint=FILE_OR_URL)``, for a file of one's own.

    Attributes:
        channels, strides: of the maps, one for each of ``out_indices``.
        isotropic: whether it has one resolution only.

    Raises:
        ValueError: the library is not installed or does not know the network, or the network
            cannot do what is asked for.
    """

    def __init__(self, name: str, out_indices: Sequence[int] | None, frozen_stages: int,
                 drop_path_rate: float | None, norm_eval: bool, use_checkpoint: bool,
                 pretrained: bool | str | None, init_cfg: dict | None):
        super().__init__(init_cfg, norm_eval, use_checkpoint)
        if drop_path_rate is not None and not 0 <= drop_path_rate < 1:
            raise ValueError(f'drop path is a probability from 0 to below 1, not {drop_path_rate}')
        self.name, self.drop_path_rate, self.pretrained = name, drop_path_rate, pretrained
        all_maps, self.any_size = self._remembered('maps', self._all_maps)
        strides = [stride for _, stride in all_maps]
        self.first = next((i for i, stride in enumerate(strides) if stride >= WANTED[0]), 0)
        stages = strides[self.first:]
        self.isotropic = len(stages) > 1 and len(set(stages)) == 1
        if out_indices is None:
            out_indices = default_indices(stages)
        check_stages(name, len(stages), out_indices, frozen_stages)
        self.out_indices = tuple(out_indices)
        self.frozen_stages = frozen_stages
        self.net = self._build([i + self.first for i in self.out_indices])
        self.channels, patches = zip(*(all_maps[i + self.first] for i in self.out_indices),
                                     strict=True)
        self.resampled = 1.  # how large an image is when it comes to the network
        self.divisor = max(strides)
        if self.isotropic and math.log2(patches[0]) % 1:
            self.divisor = 2**round(math.log2(patches[0]))
            self.resampled = patches[0] / self.divisor
        self.strides = tuple(round(stride / self.resampled) for stride in patches)
        self.parts = self._parts(len(stages))
        if frozen_stages >= 0 and self.parts is None:
            raise ValueError(f'{name}: where its stages begin and end is not known here, so '
                             'that they cannot be frozen: frozen_stages must be -1')
        if use_checkpoint:
            self._checkpoint_blocks()
        self.idle = self._remembered(self.out_indices, self._idle_parameters)
        self._finish()

    # What a library's wrapper says.

    def _build(self, indices: Sequence[int] | None) -> nn.Module:
        """The network with the features of these numbers, or with all of them."""
        raise NotImplementedError

    def _maps(self, net: nn.Module, x: Tensor) -> Sequence[Tensor]:
        """The features (N, C, h, w) that ``net`` was built for."""
        raise NotImplementedError

    def _parts(self, num_stages: int) -> list[list[str]] | None:
        """Names, in ``net``, of the stem's parts and of each stage's; None: not known."""
        raise NotImplementedError

    def _identity(self) -> str:
        """What networks that are built alike have in common."""
        raise NotImplementedError

    def _load(self):
        """Fill ``net`` with the published weights."""
        raise NotImplementedError

    # What follows from it.

    def _remembered(self, what, find: Callable):
        key = type(self), self._identity(), self.drop_path_rate, what
        if key not in FOUND:
            FOUND[key] = find()
        return FOUND[key]

    def _all_maps(self, **any_size) -> tuple[list[tuple[int, int]], dict]:
        """(channels, stride) of all features; what the network must be told to take any size."""
        self.any_size = any_size
        with torch.device('meta'):
            net = self._build(None)
        try:
            return maps_of(net, self._maps), any_size
        except ValueError as error:
            raise ValueError(f'{self.name}: {error}') from None

    def _idle_parameters(self) -> list[str]:
        """Names of the parameters that no map depends on: masks' tokens, stages behind the last."""
        with torch.device('meta'):
            twin = self._build([i + self.first for i in self.out_indices]).eval()
            maps = self._maps(twin, torch.empty(1, 3, *PROBE))
        parameters = {name: p for name, p in twin.named_parameters() if p.requires_grad}
        grads = torch.autograd.grad([features.sum() for features in maps],
                                    list(parameters.values()), allow_unused=True)
        return [name for name, grad in zip(parameters, grads, strict=True) if grad is None]

    def _named(self, names: Iterable[str]):
        for name in names:
            owner, _, leaf = name.rpartition('.')
            yield getattr(self.net.get_submodule(owner), leaf)

    def _frozen(self):
        for part in (self.parts or [])[:self.frozen_stages + 1]:
            yield from self._named(part)

    def _unused(self):
        yield from self._named(self.idle)

    def _blocks(self):
        """What is recomputed at a time: the items of each stage's list of blocks, or the stage."""
        for part in (self.parts or [])[1:]:
            for stage in self._named(part):
                lists = [module for module in getattr(stage, 'children', list)()
                         if isinstance(module, nn.ModuleList | nn.Sequential) and len(module) > 1]
                yield from lists[0] if lists else [stage] if isinstance(stage, nn.Module) else []

    def _checkpoint_blocks(self):
        blocks = [block for block in self._blocks() if any(True for _ in block.parameters())]
        if not blocks:
            raise ValueError(f'{self.name}: its blocks are not known here, so that they cannot be '
                             'recomputed: use_checkpoint must be False')
        for block in blocks:
            block.forward = partial(recomputed, block, block.forward)

    def init_weights(self):
        """Load the weights that ``pretrained`` or ``init_cfg`` names; else they stay random."""
        if self.pretrained:
            self._load()
        elif isinstance(self.init_cfg, dict) and self.init_cfg.get('type') == 'Pretrained':
            super().init_weights()
        # (mmengine would call the network's own init_weights, of another meaning.)
        self._is_init = True

    def _adapt_weights(self, state, model):
        """A file has the library's names, without the wrapper's."""
        return {name if name in model else f'net.{name}': value
                for name, value in state.items()}, {}

    def _take(self, filled: nn.Module, source: str):
        """Copy the tensors of a network that the library has filled."""
        self.net.load_state_dict(filled.state_dict())
        print_log(f'the weights of {source} are in the backbone {self.name}', logger='current')

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """(N, 3, H, W) to a tuple of (N, channels[i], ceil(H / s), ceil(W / s)), s = strides[i]."""
        height, width = x.shape[2:]
        x = F.pad(x, (0, -width % self.divisor, 0, -height % self.divisor))
        if self.resampled != 1:
            size = [round(side * self.resampled) for side in x.shape[2:]]
            x = F.interpolate(x, size, mode='bilinear', antialias=True)
        return tuple(features[:, :, :-(-height // stride), :-(-width // stride)].contiguous()
                     for features, stride in zip(self._maps(self.net, x), self.strides,
                                                 strict=True))


def default_indices(strides: Sequence[int]) -> list[int]:
    """The last stage of each stride from 4 to 32, or four of the blocks of one resolution."""
    if len(set(strides)) == 1:
        count = min(4, len(strides))
        return [round((i + 1) * len(strides) / count) - 1 for i in range(count)]
    last = {stride: i for i, stride in enumerate(strides)}
    return [last[stride] for stride in WANTED if stride in last]


def recomputed(block: nn.Module, forward, *args, **kwargs):
    """``forward`` of a block without storing its inner activations."""
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    contexts = {} if torch.compiler.is_compiling() else dict(
        context_fn=lambda: (nullcontext(), StatisticsUntouched(block)))
    return checkpoint(forward, *args, use_reentrant=False, **contexts, **kwargs)


def stages_in(net: nn.Module, lengths: Iterable[int]) -> str | None:
    """The name of the outermost list of modules that has one of these lengths."""
    names = [name for name, module in net.named_modules() if len(module_list(module)) in lengths]
    return min(names, key=lambda name: name.count('.'), default=None)


def module_list(module: nn.Module):
    return module if isinstance(module, nn.ModuleList | nn.Sequential) else ()


def around(net: nn.Module, path: str) -> tuple[list[str], list[str]]:
    """Names of what is registered before and behind a module: a network's stem, its last norms."""
    before, behind, prefix, module = [], [], '', net
    for part in path.split('.'):
        before += [prefix + name for name, _ in module.named_parameters(recurse=False)]
        seen = False
        for name, _ in module.named_children():
            if name != part:
                (behind if seen else before).append(prefix + name)
            seen = seen or name == part
        module, prefix = getattr(module, part), f'{prefix}{part}.'
    return before, behind


def optional(package: str, needed_for: str):
    """Import a package that the project does without.

    Raises:
        ValueError: it is not there, or broken.
    """
    try:
        return importlib.import_module(package)
    except Exception as error:  # (a broken torchvision raises RuntimeError)
        raise ValueError(f'{needed_for} needs the package {package}, which cannot be imported here '
                         f'({first_line(error)}): pip install {package}') from None


def close_to(name: str, known: Iterable[str]) -> str:
    """'; did you mean a, b or c?', or nothing."""
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f'; did you mean {" or ".join(close)}?' if close else ''


def pixels(mean: Sequence[float], std: Sequence[float], scale: float = 1 / 255,
           rgb: bool = True) -> dict:
    """A library's normalisation of images in 0..1 as a detector's ``data_preprocessor`` has it."""
    return dict(mean=[round(value / scale, 4) for value in mean],
                std=[round(value / scale, 4) for value in std], bgr_to_rgb=rgb)
