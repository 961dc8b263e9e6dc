"""mmengine's hook for checkpoints, put right: whatever happens, one that is whole is left."""
import contextlib
import shutil
from pathlib import Path

from mmengine.hooks import CheckpointHook
from mmengine.registry import HOOKS
from torch.optim import Optimizer

from ..errors import UserError
from ..saving import in_units
from .checkpoints import whole_state

MOMENTS = {'SGD': 1, 'RMSprop': 1}  # values that an optimizer keeps of each parameter; others: 2


@HOOKS.register_module(name='CheckpointHook', force=True)
class KeepingCheckpoints(CheckpointHook):
    """Removes an old checkpoint after the new one is on the disk, not before; asks for room first.

    Each file is written under another name and renamed (``downstream.saving``). Registered under
    mmengine's name, so that every config has it.

    Raises:
        UserError: before training, if the disk has no room for a checkpoint.
    """

    def before_train(self, runner):
        super().before_train(runner)
        for part in Path(self.out_dir).glob('.*.part'):  # of a process that was killed
            part.unlink(missing_ok=True)
        if runner.iter:  # resumed
            self.last_ckpt = runner.message_hub.runtime_info.get('last_ckpt')
            self.find_best()
        self.check_room(runner)

    def find_best(self):
        """The best checkpoint lies beside the others, also where the work dir was moved."""
        def here(path):
            moved = path and Path(self.out_dir, Path(path).name)
            return str(moved) if path and not Path(path).exists() and moved.exists() else path

        if hasattr(self, 'best_ckpt_path'):
            self.best_ckpt_path = here(self.best_ckpt_path)
        if hasattr(self, 'best_ckpt_path_dict'):
            self.best_ckpt_path_dict = {key: here(path)
                                        for key, path in self.best_ckpt_path_dict.items()}

    def check_room(self, runner):
        if '://' in str(self.out_dir):
            return
        size = size_of_checkpoint(runner)
        free = shutil.disk_usage(self.out_dir).free
        # An old one goes when the new one is there; of those of the best scores only the weights
        # are kept.
        wanted = (self.max_keep_ckpts + 1 if self.max_keep_ckpts > 0 else 2) + bool(self.save_best)
        if free < size:
            raise UserError(f'a checkpoint takes about {in_units(size)}, and {in_units(free)} are '
                            f'free in {self.out_dir}: make room, or train with --work-dir on '
                            'another disk')
        if free < wanted * size:
            runner.logger.warning(
                f'{in_units(free)} are free in {self.out_dir}; the checkpoints will take about '
                f'{in_units(wanted * size)}, {wanted} at a time')

    @contextlib.contextmanager
    def removing_afterwards(self):
        kept, later = self.file_backend, Later(self.file_backend)
        self.file_backend = later
        try:
            yield
        finally:
            self.file_backend = kept
        # (The hook has one of these two for the best scores, or neither.)
        written = {self.last_ckpt, getattr(self, 'best_ckpt_path', None),
                   *getattr(self, 'best_ckpt_path_dict', {}).values()}
        for remove, path in later.removals:  # not after an error
            if path not in written:  # it may be the new one's name, too
                remove(path)

    def _save_checkpoint_with_step(self, runner, step, meta):
        with self.removing_afterwards():
            super()._save_checkpoint_with_step(runner, step, meta)

    def _save_best_checkpoint(self, runner, metrics):
        with self.removing_afterwards():
            super()._save_best_checkpoint(runner, metrics)


class Later:
    """A file backend that notes what it shall remove."""

    def __init__(self, backend):
        self.backend, self.removals = backend, []

    def remove(self, path):
        self.removals.append((self.backend.remove, path))

    def rmtree(self, path):
        self.removals.append((self.backend.rmtree, path))

    def __getattr__(self, name):
        return getattr(self.backend, name)


def size_of_checkpoint(runner) -> int:
    """Bytes of a checkpoint with an optimizer's state, as far as can be told before the first."""
    model = runner.model
    size = sum(tensor.numel() * tensor.element_size() for tensor in whole_state(runner).values())
    optimizer = getattr(runner.optim_wrapper, 'optimizer', None)
    moments = MOMENTS.get(type(optimizer).__name__, 2)
    if isinstance(optimizer, Optimizer):
        trained = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
        size += moments * trained
    averaged = any(type(hook).__name__ == 'EMAHook' for hook in runner.hooks)
    return size * (2 if averaged else 1)
