"""What every family asks of its base class: published weights, frozen parts, normalisation."""
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from mmengine.model import BaseModule
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from .pretrained import first_line, load_pretrained

# How images come to a network that nothing else is known of: ImageNet's mean and spread, RGB.
IMAGENET = dict(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], bgr_to_rgb=True)
# For trying out on the meta device: whole numbers of strides up to 64 and of patches of 14, and no
# square.
PROBE = 448, 896


class Backbone(BaseModule):
    """A network that turns images into the maps that detection and segmentation heads read.

    A family says what is frozen and what is not used (``_frozen``, ``_unused``), and how the
    published weights of a classifier are fitted to it (``_adapt_weights``); its constructor ends
    with ``self._finish()``.

    Args:
        init_cfg: ``dict(type='Pretrained', checkpoint=FILE_OR_URL)`` starts from published
            weights; a checkpoint of None, or no init_cfg, from random ones. With
            ``allow_partial=True`` a file that fits only in part is taken as well.
        norm_eval: keep every BatchNorm in eval mode: its statistics stay what they were.
        use_checkpoint: recompute each block in the backward pass instead of storing it.
    """

    def __init__(self, init_cfg: dict | None = None, norm_eval: bool = False,
                 use_checkpoint: bool = False):
        super().__init__(init_cfg)
        self.norm_eval = norm_eval
        self.use_checkpoint = use_checkpoint

    def _frozen(self) -> Iterator[nn.Module | nn.Parameter]:
        """What gets no gradient and, where it has a mode, stays in eval mode."""
        yield from ()

    def _unused(self) -> Iterator[nn.Module | nn.Parameter]:
        """What lies behind the last map that is returned: DDP wants no gradient for it."""
        yield from ()

    def _adapt_weights(self, state: dict[str, Tensor], model: dict[str, Tensor]):
        """Fit a file's tensors to the model's: (adapted state, {name: what was done to it})."""
        return state, {}

    def _finish(self):
        for part in (*self._frozen(), *self._unused()):
            part.requires_grad_(False)

    def init_weights(self):
        """Load the weights that init_cfg names, if any."""
        init_cfg = self.init_cfg if isinstance(self.init_cfg, dict) else {}
        if init_cfg.get('type') != 'Pretrained':
            super().init_weights()
        elif init_cfg.get('checkpoint'):
            load_pretrained(self, init_cfg['checkpoint'], self._adapt_weights,
                            init_cfg.get('allow_partial', False))
        self._is_init = True

    def train(self, mode: bool = True):
        """Set the mode; frozen parts, and with norm_eval every BatchNorm, stay in eval mode."""
        super().train(mode)
        for part in self._frozen():
            if isinstance(part, nn.Module):
                part.eval()
        if self.norm_eval:
            for module in self.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self

    def _run(self, block: nn.Module, *args):
        """``block(*args)``, storing its inner activations or not."""
        if not (self.use_checkpoint and torch.is_grad_enabled()):
            return block(*args)
        if torch.compiler.is_compiling():  # a compiled graph changes statistics once by itself
            return checkpoint(block, *args, use_reentrant=False)
        return checkpoint(block, *args, use_reentrant=False,
                          context_fn=lambda: (nullcontext(), StatisticsUntouched(block)))


def maps_of(net: nn.Module, run=None) -> list[tuple[int, int]]:
    """What maps a backbone gives: (channels, stride) of each.

    Args:
        net: on the meta device, where it costs neither memory nor time.
        run: ``run(net, images)`` gives the maps, if not ``net(images)``.

    Raises:
        ValueError: it cannot take any H and W, or gives no maps (N, C, h, w) of whole strides.
    """
    images = torch.empty(1, 3, *PROBE, device='meta')
    mode = net.training
    try:
        net.eval()  # (mmdet's ResNet does not return itself)
        with torch.no_grad():
            maps = run(net, images) if run else net(images)
    except Exception as error:
        raise ValueError(
            f'it cannot take images of {PROBE[0]} x {PROBE[1]} ({first_line(error)}), and '
            'detectors and segmentors need a network that takes any height and width') from None
    finally:
        net.train(mode)
    found = []
    for features in maps:
        shape = tuple(getattr(features, 'shape', ()))
        if len(shape) != 4:
            raise ValueError(f'it gives no maps (N, C, h, w) but {shape or type(features)}')
        stride = PROBE[0] / shape[2]
        if stride % 1 or shape[3] * stride != PROBE[1]:
            raise ValueError(f'it makes a map of {shape[2]} x {shape[3]} of an image of '
                             f'{PROBE[0]} x {PROBE[1]}: strides must be whole numbers')
        found.append((shape[1], int(stride)))
    return found


class Staged(Backbone):
    """FocalNet's and Swin's layout: a stem, ``layers`` of blocks, a norm for each output.

    A family gives ``patch_embed``, ``pos_drop``, ``layers`` (``layers.Stage``), ``norm0`` ..,
    ``out_indices`` and ``frozen_stages``.
    """

    def _frozen(self):
        if self.frozen_stages >= 0:
            yield from (self.patch_embed, self.pos_drop)
        for i in range(self.frozen_stages):
            yield self.layers[i]
            if i in self.out_indices:
                yield getattr(self, f'norm{i}')

    def _unused(self):
        last = self.out_indices[-1]
        yield from self.layers[last + 1:]
        if self.layers[last].downsample is not None:
            yield self.layers[last].downsample


class StatisticsUntouched(AbstractContextManager):
    """BatchNorm computes what it always does, but a recomputation is no second batch to it.

    An object for each block, not a generator: torch enters it anew in every backward pass, of which
    a graph that is retained has several.
    """

    def __init__(self, module: nn.Module):
        self.norms = [m for m in module.modules() if isinstance(m, _BatchNorm)]

    def __enter__(self):
        self.kept = [dict(norm._buffers) for norm in self.norms]
        for norm in self.norms:
            norm._buffers.update({name: value if value is None else value.clone()
                                  for name, value in norm._buffers.items()})

    def __exit__(self, *error):
        for norm, buffers in zip(self.norms, self.kept, strict=True):
            norm._buffers.update(buffers)
