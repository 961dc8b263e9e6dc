"""--cfg-options: entries of a config, set where a value of their kind was."""
import difflib
import inspect
import re
from numbers import Number
from typing import Any

from mmengine.config import Config
from mmengine.runner import Runner

from .. import errors
from ..errors import UserError, shown

# What --cfg-options may set although the config at hand does not mention it.
DEFAULTS = {name: each.default for name, each in
            inspect.signature(Runner.__init__).parameters.items()}
RUNNER_KEYS = {*DEFAULTS, 'sync_bn', 'compile', 'runner_type',
               'find_unused_parameters', 'activation_checkpointing', 'efficient_conv_bn_eval',
               'model_wrapper_cfg', 'custom_imports', 'tta_model', 'tta_pipeline', 'max_nonfinite'}
# Values that the libraries take in several kinds, by the last name of their key.
MIXED = {'loss_scale', 'save_best', 'activation_checkpointing', 'pretrained'}
# Numbers of things, by the last name of their key: never 1.5, and at least so many.
COUNTS = {r'max_epochs|max_iters|(val_)?interval|batch_size|accumulative_counts|window_size': 1,
          r'(val_)?begin|end|num_[a-z_]+|[a-z_]*channels|seed': 0}


def merge_options(cfg: Config, options: dict[str, Any]):
    """Set entries of a config; what would be ignored silently, or cannot be meant, is refused.

    Args:
        options: as mmengine's DictAction has read them, values by dotted key.

    Raises:
        UserError: the first name is misspelt, the key leads nowhere, or the value is of another
            kind than the one that it takes the place of.
    """
    errors.options.clear()
    errors.options.update(options)
    replaced = [key.rpartition('.')[0] for key in options if key.endswith(('._delete_', '.type'))]
    for key, value in options.items():
        if not all(key.split('.')):
            raise UserError(f'--cfg-options {key}={value}: {key!r} is no name of an entry')
        name = key.split('.')[0]
        if name not in cfg and name not in RUNNER_KEYS:
            close = difflib.get_close_matches(name, {*cfg.keys(), *RUNNER_KEYS}, n=1)
            raise UserError(f'--cfg-options {key}: the config has no {name!r}'
                            + (f'; did you mean {close[0]!r}?' if close else ''))
        if name == 'launcher':
            raise UserError(f'--cfg-options {key}={value}: --launcher sets it')
        # Names may mean something else where another thing takes the place of what they belong to.
        if key.endswith('.type') or not any(key.startswith(f'{place}.') for place in replaced):
            options[key] = value = of_its_kind(
                key, entry(cfg, key) if name in cfg else DEFAULTS.get(key), value)
        check_count(key, value)
    try:
        cfg.merge_from_dict(options)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UserError(f'--cfg-options {" ".join(options)} does not fit the config: {error}'
                        ) from None


def entry(cfg: Config, key: str) -> Any:
    """The value at a dotted key; None where there is none."""
    node = cfg
    for name in key.split('.'):
        if isinstance(node, list | tuple):
            node = node[int(name)] if name.isdigit() and int(name) < len(node) else None
        else:
            node = node.get(name) if isinstance(node, dict | Config) else None
    return node


def of_its_kind(key: str, old: Any, new: Any) -> Any:
    """A value that may take the place of another; 3.0 for a whole number is 3.

    Raises:
        UserError: it is of another kind.
    """
    if isinstance(old, int) and isinstance(new, float) and new.is_integer():
        new = int(new)
    if key.split('.')[-1] not in MIXED and not fits(old, new):
        raise UserError(f'--cfg-options {key}={new}: {key!r} is {shown(new)}, not {kind(old)} '
                        f'such as it replaces: {shown(old)}')
    return new


def fits(old: Any, new: Any) -> bool:
    """Whether a value may take another's place. None may, and anything may take that of None."""
    if old is None or new is None:
        return True
    if isinstance(old, bool):
        return isinstance(new, bool) or new in (0, 1)
    if isinstance(old, Number):
        # Of several sizes or steps the config may have one.
        return isinstance(new, Number) and not isinstance(new, bool) or (
            isinstance(new, list | tuple) and all(fits(old, item) for item in new))
    if isinstance(old, str):
        return isinstance(new, str) or (  # one name or several
            isinstance(new, list | tuple) and all(isinstance(item, str) for item in new))
    if isinstance(old, dict):
        return isinstance(new, dict)
    if isinstance(old, list | tuple):
        items = new if isinstance(new, list | tuple) else [new]
        return not old or all(any(fits(one, item) for one in old) for item in items)
    return True


def kind(value: Any) -> str:
    if isinstance(value, bool):
        return 'True or False'
    if isinstance(value, Number):
        return 'a number'
    if isinstance(value, list | tuple):
        return f'a list of {"entries" if not value else kind(value[0]).removeprefix("a ") + "s"}'
    return {str: 'text', dict: 'a dict'}.get(type(value), 'a dict' if isinstance(value, dict) else
                                             type(value).__name__)


def check_count(key: str, value: Any):
    """Raise UserError for a number of things that is negative, or none, or not whole."""
    for names, least in COUNTS.items():
        if not re.fullmatch(names, key.split('.')[-1]) or isinstance(value, bool):
            continue
        for item in value if isinstance(value, list | tuple) else [value]:
            if isinstance(item, float) and not item.is_integer() or (
                    isinstance(item, int | float) and item < least
                    and not (item == -1 and key.endswith('interval') and 'train_cfg' not in key)):
                raise UserError(f'--cfg-options {key}={shown(value)}: it takes whole numbers '
                                f'from {least} on')
