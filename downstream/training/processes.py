"""The processes of a run: none outlives what it works for, and some things only one of them does.
"""
import contextlib
import ctypes
import faulthandler
import functools
import gc
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta

from mmengine.config import Config
from torch.distributed import Store
from torch.distributed.rendezvous import rendezvous
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

PATIENCE = 5  # seconds that a process which found a mistake waits for the others to hear of it
LONGEST = timedelta(days=2)  # that the others wait: large data sets on slow disks take hours
PR_SET_PDEATHSIG = 1  # linux/prctl.h


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


@functools.cache
def guard_forks():
    """Have processes that are forked from now on (data loaders' workers) end with their parent.

    On Linux the kernel kills them the moment this process has ended, by SIGKILL too; torch's
    workers would look for it every five seconds, and never while they wait for room in a full
    pipe. The kernel goes by the thread that forked, so children of other threads than the main one
    are left to torch. Signals that this process handles are its own affair: in its children
    SIGTERM and SIGUSR1 do again what they do by default, and SIGINT, which a terminal sends to
    all, is left to the parent. SIGUSR2 has a process that tools/launch.py started say where it is.
    """
    if 'DOWNSTREAM_SAID' in os.environ:
        faulthandler.register(signal.SIGUSR2, all_threads=False, chain=False)
    prctl = ctypes.CDLL(None).prctl if sys.platform == 'linux' else None
    parent = {}

    def before():
        parent.update(pid=os.getpid(), by_main=threading.get_native_id() == os.getpid())

    def in_child():
        for number in signal.SIGTERM, signal.SIGUSR1:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if prctl and parent['by_main']:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent['pid']:  # it ended in between
                os._exit(1)

    if hasattr(os, 'register_at_fork'):  # not on Windows, where nothing forks
        os.register_at_fork(before=before, after_in_child=in_child)


def end_workers():
    """End the workers of all data loaders, in the order that lets them go at once.

    Left to the garbage collector, a loader loses the queues over which it would tell its workers
    first: it waits five seconds for each.
    """
    for loader in [each for each in gc.get_objects()
                   if type(each) is _MultiProcessingDataLoaderIter]:
        loader._shutdown_workers()
