"""Stopped by a scheduler or a person: the run is saved between two iterations, then ends."""
import contextlib
import signal
import sys
import threading
from pathlib import Path

import torch
import torch.distributed as dist
from mmengine.dist import get_world_size
from mmengine.hooks import Hook

from ..saving import write_whole
from .processes import guard_forks
from .resuming import INTERRUPTED, LAST, last_path

TRY_AGAIN = 75  # EX_TEMPFAIL of sysexits.h: the same command with --resume goes on
STATUS = {signal.SIGTERM: TRY_AGAIN, signal.SIGUSR1: TRY_AGAIN, signal.SIGINT: 130}


class Stopping(Hook):
    """Saves the run and ends the process when a signal has asked for it.

    It ends with the statuses of ``STATUS``. Several processes agree on the iteration: a signal to
    one of them ends all. To be registered after CheckpointHook.
    """
    priority = 'VERY_LOW'  # as CheckpointHook, which then goes first

    def __init__(self):
        self.asked = 0  # the signal's number
        self.left = 0  # the signal that ends the process where it is
        self.at_once = True  # whether nothing would be lost
        self.runner = None  # while it trains
        self.saved = None  # the iteration that the newest checkpoint is of
        self.group = None

    # -- signals -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def listening(self):
        """Around a run: take the signals. In a thread, which cannot, do nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        guard_forks()  # or a data loader's workers would listen, too
        before = {number: signal.signal(number, self.receive) for number in STATUS
                  if signal.getsignal(number) is not signal.SIG_IGN}  # as nohup asks for
        try:
            yield
        except BaseException:
            # What is raised in the midst of a library may be caught there, and another error made
            # of it.
            if self.left == signal.SIGINT:
                raise KeyboardInterrupt from None
            if self.left:
                sys.exit(STATUS[self.left])
            raise
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def receive(self, number, frame):
        if number == signal.SIGINT:
            if self.at_once or self.asked == number:
                self.left = number
                raise KeyboardInterrupt
            print('stopping with a checkpoint after this iteration; Ctrl-C again stops at once',
                  file=sys.stderr)
        self.asked = number
        if self.at_once and number != signal.SIGINT:
            self.left = number
            leave(number, self.runner)

    # -- the run -----------------------------------------------------------------------------------

    def before_train(self, runner):
        if get_world_size() > 1 and dist.get_backend() != 'gloo':
            self.group = dist.new_group(backend='gloo')  # to ask it needs no wait for a GPU
        self.saved, self.runner = runner.iter or None, runner

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        self.at_once = False

    def before_save_checkpoint(self, runner, checkpoint):
        if 'optimizer' in checkpoint:
            self.saved = checkpoint['meta']['iter']

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self.tidy_up(runner, runner.iter + 1)
        loop = runner.train_loop
        if hasattr(loop, 'run_epoch') and batch_idx + 1 == len(loop.dataloader):
            return  # after_train_epoch does it; what belongs to an epoch's end comes first
        if is_between_steps(runner) and (number := self.agreed()):
            self.save(runner, runner.epoch, runner.iter + 1)
            leave(number, runner)

    def after_train_epoch(self, runner):
        self.tidy_up(runner, runner.iter)
        if number := self.agreed():
            if hasattr(runner.train_loop, 'run_epoch'):
                self.save(runner, runner.epoch + 1, runner.iter)
            leave(number, runner)

    def before_val_epoch(self, runner):
        self.saved = self.from_first(self.saved)
        # A validation is repeated; gradients that wait for more are not.
        self.at_once = self.saved == runner.iter and is_between_steps(runner)

    def after_val_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if not (self.asked and is_between_steps(runner)):
            return
        if get_world_size() == 1:  # several do not agree here: what is not saved waits
            self.save(runner, runner.epoch, runner.iter)
        if self.saved == runner.iter:
            leave(self.asked, runner)

    def agreed(self) -> int:
        """The signal that any of the processes has received; 0: none."""
        if get_world_size() == 1:
            return self.asked
        number = torch.tensor(self.asked)
        dist.all_reduce(number, dist.ReduceOp.MAX, group=self.group)
        return int(number)

    def save(self, runner, epoch: int, iteration: int):
        """Write a checkpoint, unless there is one of this iteration. All processes call it."""
        if self.from_first(self.saved) == iteration:
            return
        runner.save_checkpoint(runner.work_dir, INTERRUPTED, by_epoch=False,
                               meta=dict(epoch=epoch, iter=iteration))
        if runner.rank == 0:
            write_whole(Path(runner.work_dir, LAST), str(Path(runner.work_dir, INTERRUPTED)))
        if get_world_size() > 1:  # a launcher may end all when the first has ended
            dist.barrier(group=self.group)

    def after_train(self, runner):
        self.at_once, self.runner = True, None

    def from_first(self, number: int | None) -> int | None:
        """What the first process says: it alone writes ordinary checkpoints, and knows of them."""
        if get_world_size() == 1:
            return number
        number = torch.tensor(number or 0)
        dist.broadcast(number, 0, group=self.group)
        return int(number) or None

    def tidy_up(self, runner, iteration: int):
        """Remove the checkpoint of an interruption, when there is a newer one."""
        if self.saved == iteration and runner.rank == 0:
            Path(runner.work_dir, INTERRUPTED).unlink(missing_ok=True)


def is_between_steps(runner) -> bool:
    """Whether no gradients are kept for a step to come."""
    wrapper = runner.optim_wrapper
    return wrapper._inner_count % wrapper._accumulative_counts == 0


def leave(number: int, runner=None):
    """End the process with the signal's status, and say how it goes on."""
    text = f'Stopped by {signal.Signals(number).name}.'
    if runner is None:
        print(text, file=sys.stderr)
    elif runner.rank == 0:
        last = last_path(Path(runner.work_dir))
        runner.logger.warning(
            f'{text} The same command with --resume goes on from {last}' if last else text)
    sys.exit(STATUS[number])
