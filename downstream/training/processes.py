"""What several processes of a run do once, before they are a process group."""
import contextlib
import functools
import os
import pickle
import sys
import time
from collections.abc import Callable
from datetime import timedelta

from mmengine.config import Config
from torch.distributed import Store
from torch.distributed.rendezvous import rendezvous

PATIENCE = 5  # seconds that a process which found a mistake waits for the others to hear of it
LONGEST = timedelta(days=2)  # that the others wait: large data sets on slow disks take hours


def first_does(cfg: Config, work: Callable[[], list[str]]) -> list[str]:
    """Let the first process of each machine change a config, and the others have what came of it.

    The others do nothing meanwhile; where the first ends with a mistake they end with status 1 and
    say nothing. This is for torchrun; alone, or started by others, each process does the work.

    Args:
        work: changes ``cfg`` in place; it may write files that the others then read.

    Returns:
        What ``work`` returned, lines to log.

    Raises:
        whatever ``work`` raises, in the first process.
    """
    others = int(os.environ.get('LOCAL_WORLD_SIZE', 1)) - 1
    if cfg.get('launcher') != 'pytorch' or not others:
        return work()
    key = f'first_does/{os.environ.get("GROUP_RANK", 0)}'
    if int(os.environ['LOCAL_RANK']):
        notes, state = hear(key)
        cfg.__setstate__(state)
        return notes
    store()  # the others hold on to it: should this process be killed, they end too
    try:
        notes = work()
    except BaseException:
        store().set(key, b'')
        # The store may be this process's own: it has to be there until all have heard.
        end = time.monotonic() + PATIENCE
        while store().add(f'{key}/heard', 0) < others and time.monotonic() < end:
            time.sleep(0.05)
        raise
    store().set(key, pickle.dumps((notes, cfg.__getstate__())))
    return notes


def hear(key: str) -> tuple:
    """What the first process says. Where it has ended, this one does."""
    content = b''
    with contextlib.suppress(RuntimeError):  # the connection is lost
        store().wait([key], LONGEST)
        content = store().get(key)
        store().add(f'{key}/heard', 1)
    if not content:
        sys.exit(1)
    return pickle.loads(content)


@functools.cache
def store() -> Store:
    """The store over which the processes will find each other, as init_process_group does."""
    found, _, _ = next(rendezvous('env://'))
    return found
