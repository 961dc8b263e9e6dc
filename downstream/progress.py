"""How far a long task is and how long it still takes: one line on a terminal, redrawn in place.

Where stdout is no terminal (a file, a pipe, Slurm, CI) a plain line comes from time to time,
without control characters. Only the main process says anything.
"""
import contextlib
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from mmengine.dist import is_main_process
from tqdm import tqdm
from tqdm.contrib import DummyTqdmFile

LIVE = 0.1  # seconds between two drawings of the line
PLAIN = 30  # and between two plain lines


def on_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


class Progress(tqdm):
    """tqdm, with plain lines where there is no terminal: ``for x in Progress(items, 'reading')``.

    Args:
        iterable: as tqdm's, and so are the others of tqdm's arguments.
        desc: what is being done.
        unit: what is counted, in the plural.
    """
    monitor_interval = 0  # no thread of its own: data loaders fork

    def __init__(self, iterable: Iterable | None = None, desc: str | None = None, *,
                 unit: str = '', **options):
        self.plain = not on_terminal()
        settings = dict(leave=False, mininterval=LIVE, dynamic_ncols=True)
        if self.plain:
            settings = dict(mininterval=PLAIN, bar_format=(
                '{desc}: {n_fmt} of {total_fmt} ({percentage:.0f} %), {rate_noinv_fmt}, '
                '{remaining} left'))
            options.pop('bar_format', None)
        super().__init__(iterable, desc, file=sys.stdout, unit=f' {unit}' if unit else 'it',
                         miniters=1, disable=not is_main_process(), **{**settings, **options})

    def display(self, msg=None, pos=None):
        if not self.plain:
            return super().display(msg, pos)
        if self.n > self.initial and msg is None:
            self.fp.write(f'{self}\n')
            self.fp.flush()
        return True

    def clear(self, *args, **kwargs):
        if not self.plain:
            super().clear(*args, **kwargs)

    def close(self):
        if self.plain and not self.disable:
            self.leave, self.sp = False, None  # nothing was drawn that would have to go
        super().close()


def in_threads(function: Callable, items: Sequence, desc: str, unit: str) -> Iterator:
    """``function`` of each item, in their order; a line appears where that takes over a second.

    For what waits, or works outside of the interpreter's lock, as Pillow and OpenCV decode.
    """
    with ThreadPoolExecutor() as pool:
        yield from Progress(pool.map(function, items), desc, total=len(items), unit=unit, delay=1)


@contextlib.contextmanager
def printing_above(logger: logging.Logger | None = None) -> Iterator[None]:
    """Within, what is printed, warned of or logged stands above the live line, in whole lines.

    Args:
        logger: its handlers that write to the terminal go along; they hold the stream themselves.
    """
    terminal = sys.stdout
    above = DummyTqdmFile(terminal)
    handlers = [(handler, handler.stream) for handler in (logger.handlers if logger else ())
                if type(handler) is logging.StreamHandler
                and handler.stream in (terminal, sys.stderr)]
    with contextlib.ExitStack() as stack:
        for handler, stream in handlers:
            handler.setStream(above)
            stack.callback(handler.setStream, stream)
        stack.enter_context(contextlib.redirect_stdout(above))
        if sys.stderr is not None and sys.stderr.isatty():  # the same terminal
            stack.enter_context(contextlib.redirect_stderr(above))
        yield
