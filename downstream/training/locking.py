"""One training a work dir."""
import contextlib
import errno
import os
import socket
import time
from pathlib import Path

from ..errors import UserError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

RANKS = 'RANK', 'SLURM_PROCID', 'OMPI_COMM_WORLD_RANK', 'PMI_RANK'  # as the launchers set them


@contextlib.contextmanager
def holding(folder: str | Path):
    """Around a training: the first of its processes holds the work dir.

    The lock ends with the process, however it ends, and its children do not have it.

    Raises:
        UserError: another training holds it.
    """
    if fcntl is None or any(os.environ.get(name, '0') != '0' for name in RANKS):
        yield
        return
    path = Path(folder, '.lock')
    with path.open('a+') as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                file.seek(0)
                raise UserError(f'{folder} is the work dir of a training that runs ('
                                f'{file.read().strip() or "it does not say which"}): name another '
                                'with --work-dir, or wait for it') from None
            # Some network file systems have no locks.
        file.seek(0)
        file.truncate()
        file.write(f'process {os.getpid()} on {socket.gethostname()}, since '
                   f'{time.strftime("%Y-%m-%d %H:%M")}\n')
        file.flush()
        yield
