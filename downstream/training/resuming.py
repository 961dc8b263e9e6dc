"""Going on where a run was stopped: from the newest checkpoint that is whole, at the iteration."""
import contextlib
import itertools
import zipfile
from pathlib import Path

from mmengine.hooks import Hook
from mmengine.registry import LOOPS
from mmengine.runner import EpochBasedTrainLoop

from backbones.pretrained import read_checkpoint

from ..errors import UserError
from ..saving import write_whole

INTERRUPTED = 'interrupted.pth'  # written where a run is stopped between two checkpoints
NONFINITE = 'nonfinite.pth'  # what a run was in that lost its numbers
LAST = 'last_checkpoint'  # mmengine's file with the path of the one to resume
VALIDATED = '.validated'  # the iterations after which a run was validated


# -- which checkpoint ------------------------------------------------------------------------------

def find_checkpoint(cfg, wanted: str | None = None) -> list[str]:
    """Let ``resume`` without a checkpoint's name find the newest whole one of the work dir.

    mmengine resumes what ``last_checkpoint`` names; that file is put right if what it names is not
    there, or not whole. Where there is none at all, the run starts from scratch.

    Args:
        wanted: 'auto' finds one also where the config names weights to start from (load_from).

    Returns:
        the lines to log.

    Raises:
        UserError: the checkpoint that is named is not whole.
    """
    if cfg.get('load_from') and wanted != 'auto':
        check_whole(cfg.load_from)
        return []
    folder = Path(cfg.work_dir)
    found, lost = newest_whole(folder)
    if found is None:
        cfg.resume = False
        (folder / LAST).unlink(missing_ok=True)
        return lost + [f'--resume: no {"whole " if lost else ""}checkpoint in {folder}, the run '
                       'starts from scratch.']
    cfg.load_from = None
    if last_path(folder) != found.absolute():
        write_whole(folder / LAST, str(found))
    if lost:
        lost.append(f'--resume: going on from {found}; what was trained after it is repeated.')
    return lost


def last_path(folder: Path) -> Path | None:
    """What last_checkpoint says, whether or not it is there."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if text := (folder / LAST).read_text().strip():
            return Path(text).absolute()
    return None


def newest_whole(folder: Path) -> tuple[Path | None, list[str]]:
    """The checkpoint to resume, and a line about each newer one that is not whole.

    Args:
        folder: a work dir; it may have been moved, or copied from another machine.
    """
    named = last_path(folder)
    choice = []
    if named is not None:
        # The run may have been told to write its checkpoints elsewhere.
        here = folder / named.name
        choice = [here if here.is_file() or not named.is_file() else named]
    choice += sorted((path for path in folder.glob('*.pth')
                      if path not in choice and path.name != NONFINITE
                      and not path.name.startswith('best_')),
                     key=lambda path: (path.stat().st_mtime, number_in(path.name)), reverse=True)
    lost = []
    for path in choice:
        wrong = what_is_wrong(path)
        if not wrong:
            return path, lost
        lost.append(f'--resume: {path} {wrong}.')
    return None, lost


def number_in(name: str) -> int:
    return int(''.join(filter(str.isdigit, name)) or 0)


def what_is_wrong(path: Path) -> str:
    """Why nothing can be resumed from a file; '' if it can.

    Raises:
        UserError: it is whole, and reading it is refused.
    """
    if wrong := damage(path):
        return wrong
    try:
        content = read_checkpoint(path)
    except ValueError as error:  # a file as it was written: no accident, such as code in it
        raise UserError(str(error)) from None
    return '' if {'meta', 'optimizer', 'message_hub'} <= content.keys() else (
        'holds no state of a training run')


def damage(path: Path) -> str:
    """What an accident has done to a file that torch.save wrote; '' if nothing."""
    if not path.is_file():
        return 'is not there'
    try:
        with zipfile.ZipFile(path) as archive:  # torch does not compare the checksums
            damaged = archive.testzip()
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError, RuntimeError):
        return 'is not whole'
    return f'is damaged ({damaged})' if damaged else ''


# -- at which iteration ----------------------------------------------------------------------------

@LOOPS.register_module(name='EpochBasedTrainLoop', force=True)
class ResumableEpochs(EpochBasedTrainLoop):
    """mmengine's loop over epochs, which goes on in the midst of one, too.

    The batches of the epoch that were trained on are left out (``Batches``); their order is that of
    the run that was stopped, as the sampler is seeded by the epoch. Registered under mmengine's
    name, so that every config has it.
    """

    def run_epoch(self):
        done = done_in_epoch(self)
        loader = self.dataloader
        if not isinstance(loader.batch_sampler, Batches):
            # The loader lets nobody set this; it reads it when an epoch begins.
            object.__setattr__(loader, 'batch_sampler', Batches(loader.batch_sampler))
        loader.batch_sampler.skip = done
        self.runner.call_hook('before_train_epoch')
        self.runner.model.train()
        for index, batch in enumerate(loader, done):
            self.run_iter(index, batch)
        self.runner.call_hook('after_train_epoch')
        self._epoch += 1


class Batches:
    """A batch sampler that can begin later."""

    def __init__(self, batches):
        self.batches, self.skip = batches, 0

    def __iter__(self):
        return itertools.islice(iter(self.batches), self.skip, None)

    def __len__(self):
        return len(self.batches)

    def __getattr__(self, name):
        return getattr(self.batches, name)


def done_in_epoch(loop: EpochBasedTrainLoop) -> int:
    """How many iterations of the present epoch were trained when the run was stopped."""
    done = loop.iter - loop.epoch * len(loop.dataloader)
    # Of other data, or another batch, the epoch begins anew.
    return done if 0 < done < len(loop.dataloader) else 0


class MissedValidation(Hook):
    """Validates where the run was stopped before the validation that was due, or in it."""
    priority = 'LOWEST'  # after those that keep the best checkpoint, and that are to be ready

    def before_train(self, runner):
        self.file = Path(runner.work_dir, VALIDATED)
        if not runner.iter:
            self.file.unlink(missing_ok=True)  # another run's
        elif is_due(runner) and str(runner.iter) not in self.said():
            runner.logger.info('The validation that was due is made up for.')
            runner.val_loop.run()

    def said(self) -> list[str]:
        try:
            return self.file.read_text().split()
        except FileNotFoundError:
            return []

    def after_val_epoch(self, runner, metrics=None):
        write_whole(self.file, '\n'.join([*self.said(), str(runner.iter)]) + '\n')


def is_due(runner) -> bool:
    """Whether a validation comes next, before the training goes on (as in mmengine's loops)."""
    loop = runner.train_loop
    if runner.val_loop is None:
        return False
    by_epoch = isinstance(loop, EpochBasedTrainLoop)
    if by_epoch and done_in_epoch(loop):
        return False
    at, end = (loop.epoch, loop.max_epochs) if by_epoch else (loop.iter, loop.max_iters)
    loop._decide_current_val_interval()
    return at >= loop.val_begin and (at % loop.val_interval == 0 or at == end)


def check_whole(path: str):
    """Raise UserError, with the one to take instead, where a checkpoint to resume is not whole."""
    source = Path(path)
    if not source.is_file() or source.suffix != '.pth':
        return  # a name or URL: what loads it tells
    if not (wrong := damage(source)):
        return
    other, _ = newest_whole(source.parent)
    raise UserError(f'{path} {wrong}' + (f'; the newest whole one there is {other} (--resume '
                                         'without a name takes it)' if other else ''))
