"""Processes of a run wait for each other: how long, and what is said when others do not come."""
import functools
import itertools
import os
import re
import sys
import traceback
from datetime import timedelta

import mmengine.evaluator.metric
from mmengine.config import Config
from mmengine.dist import get_rank
from mmengine.logging import MessageHub

from ..errors import UserError, first_to_say, shown
from .processes import LONGEST, store

TIMEOUT = 600  # seconds; torch's default for gloo is 1800
LOST, LATE = 76, 77  # statuses (tools/launch.py): others have gone; others did not come


def set_timeout(cfg: Config) -> timedelta:
    """How long processes wait for each other: ``env_cfg.dist_cfg.timeout`` seconds, else TIMEOUT.

    Raises:
        UserError: it is no number of seconds.
    """
    if not isinstance(cfg.get('env_cfg'), dict):
        cfg.env_cfg = dict(dist_cfg=dict(backend='nccl'))  # the Runner's default
    seconds = cfg.env_cfg.setdefault('dist_cfg', dict(backend='nccl')).setdefault(
        'timeout', TIMEOUT)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
        raise UserError(f'env_cfg.dist_cfg.timeout is {shown(seconds)}, not the number of seconds '
                        'that processes wait for each other')
    return timedelta(seconds=seconds)


def about_others(error: BaseException) -> SystemExit | None:
    """What a process ends with when it waited for others in vain; None for errors of its own.

    One of those whose time ran out says so. One that lost the others says it only where
    tools/launch.py, which knows what became of them, is not there to.
    """
    text, kind = str(error), type(error).__name__
    if 'EADDRINUSE' in text:
        raise UserError(f'port {os.environ.get("MASTER_PORT")} is taken, by another run perhaps: '
                        'set PORT to another one, on all machines') from None
    if '/gloo/' not in text and kind not in ('DistNetworkError', 'DistStoreError'):
        return None
    if 'imed out' in text:  # gloo's, the store's and the socket's words
        if first_to_say():
            print(f'error: {too_late(error, text)}', file=sys.stderr)
        return SystemExit(LATE)
    if 'DOWNSTREAM_SAID' not in os.environ and first_to_say():
        print(f'error: the process of rank {get_rank()} lost the others {where(error)}: what they '
              'say tells why, if they were not killed', file=sys.stderr)
    return SystemExit(LOST)


def too_late(error: BaseException, text: str) -> str:
    if 'clients' in text or 'connect' in text:
        return (f'the processes did not find each other at {os.environ.get("MASTER_ADDR")}, port '
                f'{os.environ.get("MASTER_PORT")}: are all of them started, on all machines, with '
                f'the same address and numbers, and does no firewall keep them apart? ({text})')
    seconds = re.search(r'(\d+)ms', text)
    limit = f'{int(seconds[1]) / 1000:g} s' if seconds else 'too long'
    return (f'the process of rank {get_rank()} waited {limit} for the others {where(error)}, and '
            'not all came. One hangs or is far slower: see where it is (py-spy dump --pid), the '
            'disk its data comes from, its machine\'s load. --cfg-options '
            'env_cfg.dist_cfg.timeout=SECONDS waits longer')


def where(error: BaseException) -> str:
    """'in iteration 7, in backward (optimizer_wrapper.py, line 230)': outside of torch."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__)
              if not re.search(r'[/\\](torch|mmengine[/\\]dist)[/\\]', frame.filename)]
    iteration = MessageHub.get_current_instance().runtime_info.get('iter')
    return ((f'in iteration {iteration + 1}, ' if iteration is not None else '')
            + f'in {frames[-1].name} ({os.path.basename(frames[-1].filename)}, '
              f'line {frames[-1].lineno})')


def wait_for_first(key: str = 'ready'):
    """Wait in all processes but the first until that one comes here, for as long as it takes."""
    if int(os.environ.get('WORLD_SIZE', 1)) > 1:
        if int(os.environ['RANK']):
            store().wait([key], LONGEST)
        else:
            store().set(key, b'ready')


@functools.cache
def wait_for_scores():
    """Let the first process compute scores as long as it takes.

    The others wait for them in mmengine's broadcast, where the limit for operations of all would
    end them: scoring a large data set may take longer. Here they ask the store first.
    """
    broadcast, count = mmengine.evaluator.metric.broadcast_object_list, itertools.count()

    def when_ready(scores, *args, **kwargs):
        wait_for_first(f'scores/{next(count)}')
        return broadcast(scores, *args, **kwargs)

    mmengine.evaluator.metric.broadcast_object_list = when_ready
