"""Checkpoints: read without running anybody's code, refused when they do not fit the model."""
import os
import pickle
import re

import numpy as np
import torch
from mmengine.hooks import Hook
from mmengine.logging import HistoryBuffer
from mmengine.model import BaseTTAModel, is_model_wrapper
from mmengine.runner import CheckpointLoader

from .errors import UserError


def history_method(owner, name):
    """The getattr of the safe reader: HistoryBuffers carry their methods, nothing else may."""
    if owner is not HistoryBuffer:
        raise pickle.UnpicklingError(f'GLOBAL getattr({owner}, {name})')
    return getattr(owner, name)


# What mmengine's own checkpoints hold beside tensors: the log's history, numbers in NumPy arrays.
# NumPy 2 renamed the module of the functions that rebuild them; files have either name.
rebuild_array, rebuild_scalar = np.empty(0).__reduce__()[0], np.float64(0).__reduce__()[0]
SAFE_GLOBALS = [
    HistoryBuffer, (history_method, 'builtins.getattr'),
    slice, np.ndarray, np.dtype, *{type(np.dtype(code)) for code in np.typecodes['All']},
    *[(function, f'numpy.{core}.multiarray.{function.__name__}')
      for function in (rebuild_array, rebuild_scalar) for core in ('core', '_core')]]


# Every other way of loading, too: mmengine's loaders of further schemes, the fork's second try
# without weights_only, third parties. torch.load then never unpickles more than the above.
os.environ.setdefault('TORCH_FORCE_WEIGHTS_ONLY_LOAD', '1')
torch.serialization.add_safe_globals(SAFE_GLOBALS)


@CheckpointLoader.register_scheme(prefixes='', force=True)
def load_from_local(filename, map_location):
    """Load a file for every mmengine loader (test, resume, load_from, Pretrained).

    Upstream's loader goes back to unpickling anything when the safe way fails (the fork) or cannot
    read its own checkpoints with torch >= 2.6 (mmengine 0.10.7); this one does neither.
    """
    filename = os.path.expanduser(filename)
    if not os.path.isfile(filename):
        raise UserError(f'there is no checkpoint file {filename}')
    return safely(filename, lambda: torch.load(filename, map_location=map_location,
                                               weights_only=True))


@CheckpointLoader.register_scheme(prefixes=('http://', 'https://'), force=True)
def load_from_http(filename, map_location=None, model_dir=None, progress=True):
    """Download a checkpoint (once: torch keeps it) and load it as a local one."""
    return safely(filename, lambda: torch.hub.load_state_dict_from_url(
        filename, model_dir, map_location, progress, weights_only=True))


def safely(name, load):
    """Call ``load`` and turn what a bad checkpoint makes it raise into a UserError."""
    try:
        checkpoint = load()
    except OSError as error:  # urllib's errors are OSErrors as well
        raise UserError(f'{name} cannot be read: {error}') from None
    except Exception as error:  # damaged bytes make the reader stumble in any way
        unsafe = re.search(r'GLOBAL (\S+)', str(error))
        if unsafe:
            raise UserError(
                f'{name} holds more than weights ({unsafe[1]}), and reading that would run '
                'code from the file; ask its author for a state dict of tensors') from None
        raise UserError(f'{name} is not a checkpoint, or not all of it: it cannot be read as '
                        'a PyTorch file; copy or download it again') from None
    state = checkpoint.get('state_dict', checkpoint) if isinstance(checkpoint, dict) else None
    if not isinstance(state, dict) or not any(
            isinstance(key, str) and isinstance(value, torch.Tensor)
            for key, value in state.items()):
        raise UserError(f'{name} is not a checkpoint: it holds a {type(checkpoint).__name__} '
                        'without named tensors')
    return checkpoint


class CheckFits(Hook):
    """Refuses a checkpoint that is not the model's: mmengine itself only warns.

    Args:
        source (str): what to call the checkpoint.
        whole (bool): whether the checkpoint is the model (test, resume), so that every shape and
            nearly every parameter must fit; otherwise (load_from, to fine-tune) some must.
        resume (bool): whether it must also hold the state of a training run.
    """
    priority = 'VERY_LOW'  # after EMAHook has put its averaged weights in place

    def __init__(self, source, whole=True, resume=False):
        self.source, self.whole, self.resume = source, whole, resume

    def after_load_checkpoint(self, runner, checkpoint):
        model = runner.model
        while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
            model = model.module
        state = {re.sub(r'^module\.', '', name): value
                 for name, value in checkpoint.get('state_dict', checkpoint).items()
                 if isinstance(name, str) and isinstance(value, torch.Tensor)}
        wanted = {name: p.shape for name, p in model.named_parameters()}
        wanted = getattr(getattr(runner, 'strategy', None), 'shapes', wanted)  # whole, with FSDP
        wrong = [f'{name}: {tuple(state[name].shape)} in the checkpoint, {tuple(shape)} here'
                 for name, shape in wanted.items() if name in state and state[name].shape != shape]
        missing = [f'{name}: not in the checkpoint' for name in wanted if name not in state]
        fits = len(wanted) - len(wrong) - len(missing)
        if fits == 0 or (self.whole and (wrong or fits < 0.9 * len(wanted))):
            meta = checkpoint.get('meta') or {}
            trained = meta.get('experiment_name')
            raise UserError(
                f'{self.source} does not fit the model: {fits} of {len(wanted)} tensors fit. '
                'First that do not:\n  ' + '\n  '.join(wrong[:2] + missing[:2]) + '\n'
                + (f'It was written by the experiment {trained}: is this its config?' if trained
                   else 'Is this the config it was trained with?'))
        if self.resume and not {'meta', 'optimizer', 'message_hub'} <= checkpoint.keys():
            raise UserError(f'{self.source} holds weights only, no state of a training run to go '
                            'on from; begin a run with them with --cfg-options load_from=FILE')
