"""Files from the web: fetched once, whole, and continued where a connection broke off."""
import hashlib
import os
import re
import shutil
import sys
import time
from collections.abc import Iterable
from contextlib import contextmanager
from functools import lru_cache
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import unquote, urldefrag, urlsplit
from urllib.request import Request, urlopen

import torch
from mmengine.logging import print_log
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

CHUNK = 1 << 20
PLAIN = 30  # seconds between two lines about progress where there is no terminal
# A name like swin-47c8118f.pth states how its file's SHA-256 begins; 20210526 would be a date.
HASH_IN_NAME = re.compile(r'-(?!20\d{6}\.)([0-9a-f]{8,64})\.\w+$')


class Meter(Progress):
    """How much of one task is done and how long the rest takes.

    One line on a terminal, gone at the end; elsewhere one every half minute, on stderr.

    Args:
        what: what is being done.
        total: bytes or pieces in all, where it is known.
        bytes: whether bytes are counted.
    """

    def __init__(self, what: str, total: int | None = None, bytes: bool = False):
        counts = (DownloadColumn(), TransferSpeedColumn()) if bytes else (MofNCompleteColumn(), )
        super().__init__(TextColumn('{task.description}'), BarColumn(20), *counts,
                         TextColumn('eta'), TimeRemainingColumn(compact=True), transient=True)
        self.plain = not self.console.is_terminal
        self.disable = self.plain
        self.task_id = self.add_task(what, total=total)
        self.unit, self.said = (1 << 20 if bytes else 1), time.monotonic()

    def begin(self, completed: int, total: int | None):
        """Say that so much was done before, which does not count for the speed."""
        self.reset(self.task_id, total=total, completed=completed)

    def to(self, completed: int):
        """Say that so much is done."""
        self.update(self.task_id, completed=completed)
        if self.plain and time.monotonic() - self.said > PLAIN:
            self.said, task = time.monotonic(), self.tasks[0]
            left = task.time_remaining
            print(f'{task.description}: {completed // self.unit:,}'
                  + (f' of {int(task.total) // self.unit:,}' if task.total else '')
                  + ' MiB' * (self.unit > 1)
                  + (f', {left / 60:.0f} minutes left' if left is not None else ''),
                  file=sys.stderr, flush=True)


def cache() -> Path:
    """The folder for weight files: torch.hub's, which $TORCH_HOME moves."""
    return Path(torch.hub.get_dir()) / 'checkpoints'


def fetch(url: str) -> Path:
    """The local copy of a weight file on the web, downloaded if it is not there yet.

    It lies in torch.hub's cache ($TORCH_HOME). A connection that breaks off is taken up again, now
    or by the next call. The SHA-256 is verified where it is known: from ``URL#sha256=HEX``, or
    from a name that ends with its first digits, as in ``name-1a2b3c4d.pth``.

    Raises:
        ValueError: the file cannot be had, or is not the one that its checksum tells of.
    """
    address, fragment = urldefrag(url)
    name = name_in(address)
    # many files on the web have the same name: model.safetensors
    path = cache() / hashlib.sha256(address.encode()).hexdigest()[:16] / name
    in_name = HASH_IN_NAME.search(name)
    checksum = fragment.removeprefix('sha256=').lower() or (in_name[1] if in_name else '')
    if not re.fullmatch('[0-9a-f]{8,64}|', checksum):
        raise ValueError(f'{url}: behind # is the checksum expected, as in #sha256=1a2b3c4d...')
    make_folder(path.parent, address)
    with locked(path.parent):  # the other processes of a machine find it downloaded
        if not path.exists():
            get(address, path, checksum)
        elif fragment:  # it came when no checksum was known
            verify(path, checksum, address)
    return path


def name_in(address: str) -> str:
    """The name of the file that a URL leads to."""
    return unquote(urlsplit(address).path).rsplit('/', 1)[-1] or 'file'


def make_folder(folder: Path, what: str):
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f'{what} is downloaded to $TORCH_HOME, but {error}') from None


def get(address: str, path: Path, checksum: str = '', size: int | None = None,
        part: Path | None = None):
    """Download a file; ``path`` is there when all of it is, and right. For one process at a time.

    Args:
        address: its URL.
        path: where it is to lie.
        checksum: how its SHA-256 begins.
        size: bytes that it has to have.
        part: where it lies until then.

    Raises:
        ValueError: it cannot be had (what came of it stays), or is another one (nothing stays).
    """
    part = part or path.with_name(f'{path.name}.part')
    print_log(f'downloading {address} to {path}', logger='current')
    try:
        download(address, part, size)
    except (OSError, ValueError, HTTPException) as error:
        have = part.stat().st_size if part.exists() else 0
        raise ValueError(
            f'{address} cannot be downloaded: {error or type(error).__name__}'
            + (f'; {part} has its first {have:,} bytes, and the same command goes on from '
               'there' if have else '')) from None
    verify(part, checksum, address)
    part.rename(path)


def get_any(sources: Iterable[str], folder: Path, checksum: str = '',
            size: int | None = None) -> Path:
    """Download a file from the first of several places that has it.

    Its SHA-256 is noted beside it (NAME.sha256), for ``check_noted``.

    Args:
        sources: URLs, tried in this order.
        folder: for the file, under the URL's name; it is made.
        checksum, size: as in ``get``.

    Raises:
        ValueError: none has it; the message tells of each.
    """
    folder.mkdir(parents=True, exist_ok=True)
    failures = []
    for address in sources:
        path = folder / name_in(address)
        # another place's file may be another one
        mark = hashlib.sha256(address.encode()).hexdigest()[:8]
        try:
            get(address, path, checksum, size, path.with_name(f'{path.name}.{mark}.part'))
        except ValueError as error:
            failures.append(str(error))
            continue
        for part in folder.glob(f'{path.name}.*.part'):  # what other places began
            part.unlink()
        note(path)
        return path
    raise ValueError('\n'.join(failures))


def note(path: Path):
    """Keep a file's SHA-256 beside it."""
    with open(path, 'rb') as file:
        note_of(path).write_text(f'{sha256(file)}  {path.name}\n')


def note_of(path: Path) -> Path:
    """Where a file's SHA-256 is noted."""
    return path.with_name(f'{path.name}.sha256')


def is_noted(path: Path) -> bool:
    return note_of(path).is_file()


def check_noted(path: Path):
    """Raise ValueError unless a file is what it was when its SHA-256 was noted."""
    noted = note_of(path)
    expected = noted.read_text().split()[:1]
    state = path.stat()
    found = digest_of(path, state.st_size, state.st_mtime_ns)
    if [found] != expected:
        raise ValueError(f'{path} is not the file that was put there: its SHA-256 begins with '
                         f'{found[:8]}, not {"".join(expected)[:8]} as noted in {noted.name}. '
                         'Delete both to have it downloaded again')


@lru_cache
def digest_of(path: Path, size: int, changed: int) -> str:
    """A file's SHA-256, computed once in a process as long as the file stays as it is."""
    with open(path, 'rb') as file:
        return sha256(file)


@contextmanager
def locked(folder: Path):
    """One process at a time."""
    import fcntl  # not everywhere, and the rest of the package does without
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print_log(f'waiting for the process that is at work in {folder}', logger='current')
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def request(address: str, method: str = 'GET', **headers: str):
    """An open response of a server.

    Raises:
        OSError, HTTPException, ValueError: there is none, or it is a web page and no file.
    """
    response = urlopen(Request(address, headers={'User-Agent': 'backbones', **headers},
                               method=method), timeout=30)
    if response.headers.get_content_type() == 'text/html':
        response.close()
        raise OSError('the server answers with a web page in place of the file')
    return response


def size_of(address: str) -> int | None:
    """How many bytes a file on the web has, where its server can be asked and says it."""
    try:
        with request(address, 'HEAD') as response:
            length = response.headers.get('Content-Length')
    except (OSError, ValueError, HTTPException):
        return None
    return int(length) if length else None


def download(address: str, part: Path, size: int | None = None):
    """Append to ``part`` what it lacks of a file, again when that breaks off with some gained."""
    with Meter(name_in(address), bytes=True) as meter:
        while True:
            have = part.stat().st_size if part.exists() else 0
            broken = None
            try:
                with request(address, **({'Range': f'bytes={have}-'} if have else {})) as response:
                    goes_on = response.status == 206
                    length = response.headers.get('Content-Length')
                    total = int(length) + have * goes_on if length else None
                    check_size(total, size)
                    check_space(part.parent, (total or size or 0) - have * goes_on)
                    meter.begin(have * goes_on, total)
                    with open(part, 'ab' if goes_on else 'wb') as file:
                        while chunk := response.read(CHUNK):
                            file.write(chunk)
                            meter.to(file.tell())
            except HTTPError as error:
                if error.code != 416:  # it is asked for what lies behind its end
                    raise
                if error.headers.get('Content-Range') == f'bytes */{have}' and size in (None, have):
                    return
                part.unlink()
                continue
            except (OSError, HTTPException) as error:
                if isinstance(error, Refused):
                    raise
                broken = error
            now = part.stat().st_size if part.exists() else 0
            if not broken and total in (None, now) and size in (None, now):
                return
            if now <= have:
                raise broken or OSError('the connection broke off')


class Refused(OSError):
    """No second try would help."""


def check_size(total: int | None, size: int | None):
    if None not in (total, size) and total != size:
        raise Refused(f'it should have {size:,} bytes, the server offers {total:,}: another file')


def check_space(folder: Path, needed: int):
    """Raise OSError unless a folder's disk has room for so many bytes."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise Refused(f'{needed / 2**30:,.1f} GiB are needed in {folder}, and {free / 2**30:,.1f} '
                      'GiB are free')


def verify(path: Path, checksum: str, address: str):
    """Delete a file whose SHA-256 does not begin with ``checksum``, and raise ValueError."""
    if not checksum:
        return
    with open(path, 'rb') as file:
        found = sha256(file)
    if not found.startswith(checksum):
        path.unlink()
        raise ValueError(f'{address} is not the file that was expected: its SHA-256 begins with '
                         f'{found[:len(checksum)]}, not {checksum}; the download was deleted')


def sha256(file) -> str:
    """Of an open binary file."""
    digest = hashlib.sha256()
    while chunk := file.read(CHUNK):
        digest.update(chunk)
    return digest.hexdigest()
