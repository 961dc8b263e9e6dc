"""How a published weight file becomes a backbone's."""
import argparse
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from pickle import UnpicklingError

import numpy as np
import torch
from mmengine.logging import HistoryBuffer, print_log
from torch import Tensor, nn

from .claims import Claims, check_packed, check_values
from .download import fetch
from .weights import fetch_named, is_name

# Where the weights lie in the files that authors release, in the order in which they are tried.
CONTAINERS = ('state_dict', 'model', 'teacher')
# What wraps all of a model's names: DataParallel, a training script's own module.
WRAPPERS = ('module.', 'model.')
# What a backbone is called in a larger model: a detector, a CLIP-like one.
PARTS = ('backbone.', 'visual.')
# Below this share of a backbone's parameters a file is taken for another model's.
MIN_MATCHED = 0.9
# Of the names in a file a message has so many, and so much of each.
GROUPS, LONGEST = 40, 120

# Families add to these what they know of files:
# ``f(state) -> (state under our names, whose names they were)``, or None if they are not those;
NAMINGS: list[Callable] = []
# ``f(state) -> 'FocalNet-T lrf'``, or None if the tensors, under our names, are not that family's.
KINDS: list[Callable] = []


def history_method(owner, name):
    """The getattr of the safe reader: HistoryBuffers carry their methods, nothing else may."""
    if owner is not HistoryBuffer:
        raise UnpicklingError(f'GLOBAL getattr({owner}, {name})')
    return getattr(owner, name)


# What mmengine's own checkpoints hold beside tensors: the log's history, numbers in NumPy arrays.
# NumPy 2 renamed the module of the functions that rebuild them; files have either name. And what
# holds the command line in the authors' DINO and DeiT checkpoints.
rebuild_array, rebuild_scalar = np.empty(0).__reduce__()[0], np.float64(0).__reduce__()[0]
SAFE_GLOBALS = [
    HistoryBuffer, (history_method, 'builtins.getattr'), argparse.Namespace,
    slice, np.ndarray, np.dtype, *{type(np.dtype(code)) for code in np.typecodes['All']},
    *[(function, f'numpy.{core}.multiarray.{function.__name__}')
      for function in (rebuild_array, rebuild_scalar) for core in ('core', '_core')]]
torch.serialization.add_safe_globals(SAFE_GLOBALS)

# Names of files that the person at the keyboard trusts to run code (--trust-checkpoint).
TRUSTED: set[str] = set()


def read_checkpoint(source: str, map_location='cpu') -> dict:
    """Read a weight file without executing anything in it, unless it is in ``TRUSTED``.

    Args:
        source: path or http(s) URL of a .safetensors file or of one that torch.save wrote, or a
            name in weights.yml.
        map_location: as in torch.load.

    Returns:
        What the file holds.

    Raises:
        ValueError: no such file, not a weight file, or one that holds more than plain data or
            claims to hold more than it can.
    """
    source = str(source)
    path = local_file(source)
    if not path.is_file():
        raise ValueError(f'there is no weight file {source}')
    if path.suffix == '.safetensors':
        place = 'cpu' if callable(map_location) else str(map_location)
        read = partial(read_safetensors, path, place)
    elif source in TRUSTED:
        read = partial(unpickle, path, map_location)
    else:
        read = partial(torch.load, path, map_location=map_location, weights_only=True)
    try:
        if source in TRUSTED:
            return read()
        size = path.stat().st_size
        check_packed(path, size)
        content = read()
        check_values(content, size)
        return content
    except OSError as error:
        raise ValueError(f'{source} cannot be read: {error}') from None
    except Claims as error:
        raise ValueError(f'{source} {error}') from None
    except Exception as error:  # damaged bytes make the readers stumble in any way
        unsafe = re.search(r'GLOBAL (\S+)', str(error))
        if unsafe:
            raise ValueError(
                f'{source} holds more than weights ({shown(unsafe[1])}), and reading that would '
                'run code from the file, which is refused; ask its author for a file of tensors, '
                'or, if you trust whoever made it with this machine, say --trust-checkpoint'
            ) from None
        raise ValueError(f'{source} is no weight file, or not all of it: it cannot be read '
                         f'({first_line(error)}); copy or download it again') from None


def local_file(source: str) -> Path:
    """The path of a weight file, fetched first where it is named by a URL or by its name.

    Raises:
        ValueError: it cannot be had, or there is no such name. (A path is not looked at.)
    """
    source = str(source)
    if source.startswith(('http://', 'https://')):
        return fetch(source)
    return fetch_named(source) if is_name(source) else Path(source).expanduser()


def read_safetensors(path: Path, place: str) -> dict:
    """The file's tensors as 'state_dict', what else it says (texts, by name) as 'meta'."""
    from safetensors import safe_open  # needed for these files only
    with safe_open(path, framework='pt', device=place) as file:
        return {'meta': file.metadata() or {},
                'state_dict': {name: file.get_tensor(name) for name in file.keys()}}  # noqa: SIM118


def unpickle(path: Path, map_location):
    """Read a trusted file, which may run code."""
    forced = os.environ.pop('TORCH_FORCE_WEIGHTS_ONLY_LOAD', None)
    try:
        return torch.load(path, map_location=map_location, weights_only=False)
    finally:
        if forced is not None:
            os.environ['TORCH_FORCE_WEIGHTS_ONLY_LOAD'] = forced


def weights_in(checkpoint, source: str) -> dict[str, Tensor]:
    """The named tensors in what a file holds.

    Raises:
        ValueError: there are none.
    """
    state = checkpoint
    for name in CONTAINERS:
        if isinstance(state, dict) and isinstance(state.get(name), dict):
            state = state[name]
    if not isinstance(state, dict) or not any(
            isinstance(name, str) and isinstance(value, Tensor) for name, value in state.items()):
        raise ValueError(
            f'{source} holds a {type(checkpoint).__name__} without named tensors where weights are '
            f'kept (at the top, or under {", ".join(CONTAINERS)})')
    return state


def read_weights(source: str) -> tuple[dict[str, Tensor], str]:
    """Read a weight file for a backbone.

    Returns:
        (its tensors under the names that they have here, whose names the file has: ours unless
        it says 'timm' and the like).

    Raises:
        ValueError: as ``read_checkpoint``, or no tensors in the file.
    """
    return our_names(weights_in(read_checkpoint(source), source))


def our_names(state: dict[str, Tensor]) -> tuple[dict[str, Tensor], str]:
    """A bare backbone's names: without what wraps them, and translated from other libraries'."""
    state = {name: value for name, value in state.items()
             if isinstance(name, str) and isinstance(value, Tensor)}
    before = None
    while state.keys() != before:  # prefixes nest in any order
        before = state.keys()
        for prefix in WRAPPERS:
            if all(name.startswith(prefix) for name in state):
                state = without(prefix, state)
        for prefix in PARTS:
            if any(name.startswith(prefix) for name in state):
                state = without(prefix, state)
                if all(name.startswith('0.') for name in state):  # of a pair, in DETR and DINO
                    state = without('0.', state)
    for naming in NAMINGS:
        if (renamed := naming(state)):
            return renamed
    return state, 'ours'


def without(prefix: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The entries with a prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in state.items()
            if name.startswith(prefix)}


def kind_of(state: dict[str, Tensor]) -> str:
    """Which family and variant tensors are, as far as their names and shapes tell."""
    found = (kind(state) for kind in KINDS)
    return next(filter(None, found), f'no model that is known here ({grouped(state)[:100]})')


class Match:
    """What of a file's tensors a model takes.

    Args:
        state: the file's entries under the model's names.
        own: the model's; they may lie on the meta device.
        changed: what was done to tensors that had another shape, in words, one entry a tensor.
        optional: names that the model has but need not be told about.

    Attributes:
        fits: names and tensors to load.
        wrong: names of the tensors whose shape does not fit.
        missing: names of the model that the file does not have.
        unexpected: names of the file that the model does not have.
        unequal: lists of names, of one tensor in the model each, of which the file has several.
    """

    def __init__(self, state: dict[str, Tensor], own: dict[str, Tensor],
                 changed: Sequence[str] = (), optional: Collection[str] = ()):
        self.state, self.own, self.changed = state, own, changed
        self.fits = {name: value for name, value in state.items()
                     if name in own and value.shape == own[name].shape
                     and value.is_complex() == own[name].is_complex()}
        self.wrong = [name for name in state if name in own and name not in self.fits]
        self.missing = [name for name in own if name not in state]
        self.unexpected = [name for name in state if name not in own and name not in optional]
        self.unequal = [names for names in one_tensor(own)
                        if not equal([self.fits[name] for name in names if name in self.fits])]

    def shares(self, prefix: str = '') -> tuple[float, float]:
        """Of the parameters with a prefix: the share of the model's that the file fills, and of
        the file's that have a place in the model. A file of a deeper variant fills all of a model,
        and is still another network. Modules that the model does without (a classifier) are not
        counted.
        """
        modules = {name.split('.')[0] for name in self.own}
        sizes = [{name: value.numel() for name, value in side.items()
                  if name.startswith(prefix) and name.split('.')[0] in modules}
                 for side in (self.own, self.state)]
        return tuple(sum(size[name] for name in self.fits if name in size)
                     / (sum(size.values()) or 1) for size in sizes)

    def differences(self, most: int = 3) -> str:
        """The first tensors that do not fit, in words."""
        def form(value: Tensor) -> str:
            return 'complex ' * value.is_complex() + shown(tuple(value.shape))

        lines = [f'{name}: {form(self.state[name])} in the file, {form(self.own[name])} in the '
                 'model' for name in self.wrong[:most]]
        lines += [f'{name}: not in the file' for name in self.missing[:most]]
        lines += [f'{shown(name)}: not in the model' for name in self.unexpected[:most]]
        lines += [f'{names[0]} to {names[-1]}: one tensor in the model, several in the file'
                  for names in self.unequal[:most]]
        return '\n  '.join(lines[:2 * most])

    def __str__(self):
        return (f'{len(self.fits)} of {len(self.own)} tensors loaded, {len(self.changed)} of them '
                f'resized: {summary(self.changed)}\n'
                f'  of another shape: {grouped(self.wrong)}\n'
                f'  not in the file: {grouped(self.missing)}\n'
                f'  in the file but not used: {grouped(self.unexpected)}')


def one_tensor(own: dict[str, Tensor]) -> list[list[str]]:
    """The names that a model has for one and the same tensor, where it has several."""
    names = {}
    for name, value in own.items():
        place = value.untyped_storage()._cdata, value.storage_offset(), value.shape
        names.setdefault(place, []).append(name)
    return [group for group in names.values() if len(group) > 1]


def equal(tensors: Sequence[Tensor]) -> bool:
    """Whether all are the same numbers."""
    return all(tensor.equal(tensors[0]) for tensor in tensors[1:])


def match(state: dict[str, Tensor], own: dict[str, Tensor], source: str,
          adapt: Callable | None = None, allow_partial: bool = False) -> Match:
    """Fit a file's tensors to a backbone's.

    Args:
        state: the file's entries under our names.
        own: the backbone's.
        source: what to call the file.
        adapt: ``adapt(state, own) -> (state, {name: what was done})`` fits a family's tensors
            whose shape differs.
        allow_partial: take a file that fits only in part.

    Raises:
        ValueError: less than 90 % of the model's parameters are in the file, or less than 90 % of
            what the file has for the model's modules is in the model.
    """
    adapted, rules = adapt(state, own) if adapt else (state, {})
    result = Match(adapted, own, list(rules.values()))
    taken, used = result.shares()
    if min(taken, used) < MIN_MATCHED and not (allow_partial and result.fits):
        raise ValueError(
            f"{source} fills {taken:.0%} of the backbone's parameters, and {used:.0%} of its own "
            f'have a place there: it is another model or another variant. The file is '
            f'{kind_of(state)}, the model {kind_of(own)}. First differences:\n  '
            f'{result.differences()}\nTake weights of this model, or say --allow-partial '
            '(init_cfg.allow_partial=True) to load what fits')
    return result


def load_pretrained(model: nn.Module, source: str, adapt: Callable | None = None,
                    allow_partial: bool = False) -> tuple[list[str], list[str]]:
    """Load a published weight file into a backbone and log what was loaded and what was not.

    Args:
        model: the backbone.
        source: path, URL or name.
        adapt, allow_partial: as in ``match``.

    Returns:
        (names of the model that were not filled, names of the file that were not used).

    Raises:
        ValueError: an unreadable file, or one that does not fit (``match``).
    """
    state, naming = read_weights(source)
    own = model.state_dict()
    result = match(state, own, source, adapt, allow_partial)
    model.load_state_dict(result.fits, strict=False)
    print_log(f'{source} is {kind_of(state)}' + (f' under the names of {naming}'
                                                 if naming != 'ours' else '')
              + f'; for the backbone {type(model).__name__}:\n  {result}', logger='current')
    return [name for name in own if name not in result.fits], result.unexpected


def first_line(error: Exception) -> str:
    refused = re.search(r'WeightsUnpickler error: (.*)', str(error))  # behind wrong advice
    return shown(refused[1] if refused else
                 next(iter(str(error).splitlines()), type(error).__name__), 200)


def summary(items) -> str:
    """'3 x this, 2 x that', or 'none'."""
    return ', '.join(f'{n} x {item}' for item, n in Counter(items).items()) or 'none'


def grouped(names) -> str:
    """Names gathered by module, block numbers folded: 'layers.*.norm1 (24)', or 'none'."""
    modules = Counter('.'.join('*' if part.isdigit() else part for part in name.split('.')[:-1])
                      or name for name in names)
    words = [f'{shown(module)} ({n})' for module, n in list(modules.items())[:GROUPS]]
    return ', '.join(words + ['…'] * (len(modules) > GROUPS)) or 'none'


def shown(name, longest: int = LONGEST) -> str:
    """A name that a file has, for a message: its beginning, control characters written out."""
    text = ''.join(c if c.isprintable() else repr(c)[1:-1] for c in str(name)[:longest])
    return text + '…' * (len(str(name)) > longest)
