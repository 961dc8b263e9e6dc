"""How a published weight file becomes a backbone's."""
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from pickle import UnpicklingError

import torch
from mmengine.logging import print_log
from torch import Tensor, nn

# Where the weights lie in the files that authors release, in the order in which they are tried.
CONTAINERS = ('state_dict', 'model', 'teacher')
# What wraps a backbone's names there: DataParallel, CLIP-like models, detectors, EMA copies.
PREFIXES = ('module.', 'model.', 'visual.', 'backbone.')
# Below this share of the model's parameters a file is taken for another model's.
MIN_MATCHED = 0.9


def read_weights(checkpoint: str) -> dict[str, Tensor]:
    """Read a weight file (path or http(s) URL) without executing anything in it.

    Returns its tensors under the names that a bare backbone gives them.

    Raises:
        ValueError: no such file, not a weight file, or one that holds more than plain data.
    """
    try:
        if checkpoint.startswith(('http://', 'https://')):
            loaded = torch.hub.load_state_dict_from_url(checkpoint, map_location='cpu',
                                                        weights_only=True)
        else:
            loaded = torch.load(Path(checkpoint).expanduser(), map_location='cpu',
                                weights_only=True)
    except FileNotFoundError:
        raise ValueError(f'no weight file at {checkpoint}') from None
    except UnpicklingError as error:
        raise ValueError(f'{checkpoint} holds more than weights, or is no weight file, and is not '
                         f'executed: {first_line(error)}') from error
    except Exception as error:  # damaged bytes make the reader stumble in any way
        raise ValueError(f'{checkpoint} could not be read, it may be damaged or incomplete: '
                         f'{first_line(error)}') from error
    for name in CONTAINERS:
        if isinstance(loaded, dict) and isinstance(loaded.get(name), dict):
            loaded = loaded[name]
    state = loaded if isinstance(loaded, dict) else {}
    state = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    if not state:
        raise ValueError(f'{checkpoint} holds no tensors where weights are kept (at the top or '
                         f'under {", ".join(CONTAINERS)})')
    return strip_prefixes(state)


def strip_prefixes(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Names without what wraps them; of a whole detector only its backbone stays."""
    if any(name.startswith('backbone.') for name in state):
        state = {name: value for name, value in state.items() if name.startswith('backbone.')}
    for prefix in PREFIXES * 2:  # they nest in either order
        if all(name.startswith(prefix) for name in state):
            state = {name.removeprefix(prefix): value for name, value in state.items()}
    return state


def load_pretrained(model: nn.Module, checkpoint: str, adapt: Callable | None = None):
    """Load a published weight file into a backbone and log what was loaded and what was not.

    Args:
        model: the backbone.
        checkpoint: path or URL.
        adapt: ``adapt(state, model_state) -> (state, rules)`` fits a family's tensors whose shape
            differs; ``rules`` says in words what was done to which.

    Returns:
        (missing names of the model, unexpected names of the file).

    Raises:
        ValueError: an unreadable file, or one that fits less than 90 % of the model's parameters.
    """
    state = read_weights(checkpoint)
    own = model.state_dict()
    state, rules = adapt(state, own) if adapt else (state, {})
    fits = {name: value for name, value in state.items()
            if name in own and value.shape == own[name].shape}
    misfits = [name for name in state if name in own and name not in fits]
    missing = [name for name in own if name not in fits]
    unexpected = [name for name in state if name not in own]

    share = sum(own[name].numel() for name in fits) / sum(value.numel() for value in own.values())
    if share < MIN_MATCHED:
        lines = [f'{name}: {tuple(state[name].shape)} in the file, {tuple(own[name].shape)} in '
                 'the model' for name in misfits[:3]]
        lines += [f'{name}: not in the file' for name in missing if name not in misfits][:3]
        raise ValueError(
            f'{checkpoint} fits only {share:.0%} of the parameters of {type(model).__name__}: it '
            'is another model or another variant, and training would start from mostly random '
            'weights. First differences:\n  ' + '\n  '.join(lines))
    model.load_state_dict(fits, strict=False)
    print_log(
        f'{type(model).__name__}: {len(fits)} of {len(own)} tensors loaded from {checkpoint}\n'
        f'  resized: {summary(rules.values())}\n'
        f'  left at their initial values: {grouped(missing)}\n'
        f'  in the file but not used: {grouped(unexpected)}', logger='current')
    return missing, unexpected


def first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def summary(items) -> str:
    """'3 x this, 2 x that', or 'none'."""
    return ', '.join(f'{n} x {item}' for item, n in Counter(items).items()) or 'none'


def grouped(names) -> str:
    """Names gathered by module, block numbers folded: 'layers.*.norm1 (24)', or 'none'."""
    modules = Counter('.'.join('*' if part.isdigit() else part for part in name.split('.')[:-1])
                      or name for name in names)
    return ', '.join(f'{module} ({n})' for module, n in modules.items()) or 'none'
