"""How much memory a piece of a test takes at most."""
import contextlib
from pathlib import Path

STATUS, CLEAR = Path('/proc/self/status'), Path('/proc/self/clear_refs')


def kept(name: str) -> int:
    """A line of the kernel's status of this process, in bytes."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) << 10


@contextlib.contextmanager
def peak_growth():
    """Within or after: a function that says by how many bytes the resident memory grew at most."""
    CLEAR.write_text('5')  # the kernel forgets the peak (man 5 proc)
    before = kept('VmRSS')
    yield lambda: kept('VmHWM') - before
