"""Hides what the libraries remark about themselves, so that what a person reads is about their run.

Each remark is named here, with the reason why nobody who trains or tests a model can do anything
about it; all others stay. ``downstream`` imports this before mmdet and mmseg, whose first import is
the loudest. Worker processes have it too: forked ones as they are, spawned ones because they import
the tool first.
"""
import functools
import logging
import re
import sys
import warnings

import mmengine.logging

# Python warnings of these libraries, by the beginning of their message.
LIBRARIES = r'(mmdet|mmseg|mmengine|torch)\.'
WARNINGS = (
    # mmdet has a second, optional evaluator; no experiment names it.
    'faster_coco_eval is not installed',
    # Said of every cross entropy and every hook that draws nothing: mmseg's defaults, with which
    # the published models were trained.
    'Default ``avg_non_ignore`` is False',
    'The draw is False, it means that the hook for visualization will not take effect',
    # mmengine's wrapper for several processes, of the argument that it gives itself by default.
    '`broadcast_buffers` is deprecated',
    # The libraries' losses, heads and position encodings, about their own code.
    '``build_loss`` would be deprecated soon',
    'To copy construct from a tensor, it is recommended to use',
    'DeprecationWarning: `num_anchors` is deprecated',
    'torch.meshgrid: in an upcoming release',
    # mmseg's test-time augmentation averages maps as mmengine does not like them.
    'The shape of value will convert from',
    # mmengine's drawing: a box that ends at the image's border counts as outside.
    'Warning: The bbox is out of bounds',
    'Warning: The polygon is out of bounds',
)
# Lines of mmengine's log.
LOGGED = re.compile('|'.join((
    # mmengine warns of what its own CheckpointHook uses.
    '"FileClient" will be deprecated in future',
    '"HardDiskBackend" is the alias of "LocalBackend"',
    # mmseg's scores have no prefix (mIoU); the dumps of predictions have no scores.
    'The prefix is not set in metric class',
)))
# What stands in the log file alone: hundreds of lines that nobody reads while a run goes by.
FILE_ONLY = re.compile(r'\s*-+\s+System environment:|Config:\n|Hooks will be executed'
                       '|paramwise_options -- ')
# The forks can read another data format. Where its package is missing they say so at level DEBUG,
# but to no logger: that is printed, whatever the level.
PRINTED = 'Could not import OneDL'


def keep(record: logging.LogRecord) -> bool:
    """A logging filter: False for mmengine's remarks about itself."""
    return not LOGGED.match(str(record.msg))


def brief(record: logging.LogRecord) -> bool:
    """A filter for the terminal: False for what stands in the log file alone."""
    return not FILE_ONLY.match(str(record.msg))


def ignore(message: str):
    warnings.filterwarnings('ignore', message=re.escape(message), module=LIBRARIES)


upstream = mmengine.logging.print_log


@functools.wraps(upstream)
def print_log(msg, logger=None, *args, **kwargs):
    if logger is not None or not str(msg).startswith(PRINTED):
        upstream(msg, logger, *args, **kwargs)


upstream_logger = mmengine.logging.MMLogger.__init__


@functools.wraps(upstream_logger)
def init_logger(self, *args, **kwargs):
    upstream_logger(self, *args, **kwargs)
    if len(self.handlers) > 1:  # there is a file
        self.handlers[0].addFilter(brief)
        for handler in self.handlers[1:]:
            handler.handleError = functools.partial(say_once, handler, [])


def say_once(handler: logging.FileHandler, said: list, record: logging.LogRecord):
    """In place of a traceback for each line that cannot be logged: the disk is full, or gone."""
    if not said:
        said.append(sys.exc_info()[1])
        print(f'warning: {handler.baseFilename} is not written any more: {said[0]}',
              file=sys.stderr)


for message in WARNINGS:
    ignore(message)
mmengine.logging.MMLogger.__init__ = init_logger
mmengine.logging.print_log = print_log  # for the modules that are imported from here on
