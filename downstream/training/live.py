"""The live line of a training or a test: where it is, the loss, the speed, the time left."""
import contextlib
import logging
import re
import time

import torch
from mmengine.dist import get_world_size, is_main_process
from mmengine.hooks import Hook
from tqdm import tqdm

from ..progress import Progress, on_terminal, printing_above

WINDOW = 50  # iterations whose mean loss is shown, as in the log (log_processor.window_size)
# The live line says what these lines of mmengine's log say, and more often.
REPEATED = re.compile(r'(Epoch|Iter)\((val|test)\) .*\beta: ')


def not_repeated(record: logging.LogRecord) -> bool:
    return not REPEATED.match(str(record.msg))


@contextlib.contextmanager
def live_line(runner):
    """Around ``runner.train()`` or ``.test()``: the live line, where stdout is a terminal.

    The log file is as without it, and so is what is printed elsewhere.
    """
    if not (on_terminal() and is_main_process()):
        yield
        return
    line = LiveLine()
    runner.register_hook(line)
    console = [handler for handler in runner.logger.handlers
               if type(handler) is logging.StreamHandler]
    for handler in console:
        handler.addFilter(not_repeated)
    try:
        yield
    finally:  # stopped or failed in the midst: what is said about it has a line of its own
        line.close()
        for handler in console:
            handler.removeFilter(not_repeated)


class LiveLine(Hook):
    """Draws the line; see :func:`live_line`. There is none while scores are computed."""
    priority = 'VERY_LOW'  # after the hooks that measure the loss

    def __init__(self):
        self.line = None

    def open(self, runner, total: int, initial: int = 0):
        self.close()
        self.stack = contextlib.ExitStack()
        self.line = Progress(total=total, initial=initial, bar_format=(
            '{desc} {percentage:3.0f}%|{bar:10}| {n_fmt}/{total_fmt}{postfix}'))
        self.stack.callback(self.line.close)
        self.stack.enter_context(printing_above(runner.logger))

    def close(self):
        if self.line is not None:
            self.stack.close()
            self.line = None

    def step(self, words: str, images: int, left: float, loss: float | None = None):
        """Count an iteration.

        Args:
            words: what is being done.
            images: in the iteration, of all processes.
            left: seconds that the rest will take.
            loss: mean of the last iterations.
        """
        rate = self.line.format_dict['rate'] or 0  # iterations a second, of late
        parts = [f'eta {tqdm.format_interval(left)}', loss is not None and f'loss {loss:.4f}',
                 f'{rate * images:.3g} images/s' if rate else None,
                 torch.cuda.is_available()
                 and f'{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB']
        self.line.set_description_str(words, refresh=False)
        self.line.set_postfix_str(', '.join(filter(None, parts)), refresh=False)
        self.line.update()

    # -- training ----------------------------------------------------------------------------------

    def before_train(self, runner):
        self.first, self.begin = runner.iter, time.monotonic()

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if self.line is None:
            self.open(runner, runner.max_iters, runner.iter)

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        done = runner.iter + 1
        # With the validations that there were, which the log's eta leaves out.
        left = ((time.monotonic() - self.begin) / (done - self.first) * (runner.max_iters - done))
        self.step(f'epoch {runner.epoch + 1}/{runner.max_epochs}' if runner.log_processor.by_epoch
                  else 'training', len(data_batch['data_samples']) * get_world_size(), left,
                  runner.message_hub.get_scalar('train/loss').mean(WINDOW))
        if done == runner.max_iters:
            self.close()

    # -- validation and test -----------------------------------------------------------------------

    def before_val_epoch(self, runner):
        self.open(runner, len(runner.val_dataloader))

    def before_test_epoch(self, runner):
        self.open(runner, len(runner.test_dataloader))

    def after_val_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self.scored('validation', outputs)

    def after_test_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self.scored('test', outputs)

    def scored(self, words: str, outputs):
        done, total = self.line.n + 1, self.line.total
        left = self.line.format_dict['elapsed'] / done * (total - done)
        self.step(words, len(outputs) * get_world_size(), left)
        if done == total:
            self.close()
