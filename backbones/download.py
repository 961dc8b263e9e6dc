"""Weight files from the web: fetched once, whole, and continued where a connection broke off."""
import hashlib
import os
import re
from contextlib import contextmanager
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
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

CHUNK = 1 << 20
# A name like swin-47c8118f.pth states how its file's SHA-256 begins; 20210526 would be a date.
HASH_IN_NAME = re.compile(r'-(?!20\d{6}\.)([0-9a-f]{8,64})\.\w+$')


def fetch(url: str) -> Path:
    """The local copy of a file on the web, downloaded if it is not there yet.

    It lies in torch.hub's cache ($TORCH_HOME). A connection that breaks off is taken up again, now
    or by the next call. The SHA-256 is verified where it is known: from ``URL#sha256=HEX``, or
    from a name that ends with its first digits, as in ``name-1a2b3c4d.pth``.

    Raises:
        ValueError: the file cannot be had, or is not the one that its checksum tells of.
    """
    address, fragment = urldefrag(url)
    name = unquote(urlsplit(address).path).rsplit('/', 1)[-1] or 'file'
    # many files on the web have the same name: model.safetensors
    folder = hashlib.sha256(address.encode()).hexdigest()[:16]
    path = Path(torch.hub.get_dir()) / 'checkpoints' / folder / name
    in_name = HASH_IN_NAME.search(name)
    checksum = fragment.removeprefix('sha256=').lower() or (in_name[1] if in_name else '')
    if not re.fullmatch('[0-9a-f]{8,64}|', checksum):
        raise ValueError(f'{url}: behind # is the checksum expected, as in #sha256=1a2b3c4d...')

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f'{address} is downloaded to $TORCH_HOME, but {error}') from None
    part = path.with_name(f'{name}.part')
    with locked(path.parent):  # the other processes of a machine find it downloaded
        if not path.exists():
            print_log(f'downloading {address} to {path}', logger='current')
            try:
                download(address, part)
            except (OSError, ValueError, HTTPException) as error:
                have = part.stat().st_size if part.exists() else 0
                raise ValueError(
                    f'{address} cannot be downloaded: {error or type(error).__name__}'
                    + (f'; {part} has its first {have:,} bytes, and the same command goes on from '
                       'there' if have else '')) from None
            verify(part, checksum, address)
            part.rename(path)
        elif fragment:  # it came when no checksum was known
            verify(path, checksum, address)
    return path


@contextmanager
def locked(folder: Path):
    """One process at a time."""
    import fcntl  # not everywhere, and the rest of the package does without
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def download(address: str, part: Path):
    """Append to ``part`` what it lacks of a file, again when that breaks off with some gained."""
    # One line on a terminal, gone at the end, and nothing elsewhere.
    columns = (TextColumn('{task.description}'), BarColumn(20), DownloadColumn(),
               TransferSpeedColumn(), TextColumn('eta'), TimeRemainingColumn(compact=True))
    with Progress(*columns, transient=True) as progress:
        task = progress.add_task(part.stem, total=None)
        while True:
            have = part.stat().st_size if part.exists() else 0
            headers = {'User-Agent': 'backbones', **({'Range': f'bytes={have}-'} if have else {})}
            broken = None
            try:
                with urlopen(Request(address, headers=headers), timeout=30) as response:
                    goes_on = response.status == 206
                    length = response.headers.get('Content-Length')
                    total = length and int(length) + have * goes_on
                    # (What was there before does not count for the speed.)
                    progress.reset(task, total=total, completed=have * goes_on)
                    with open(part, 'ab' if goes_on else 'wb') as file:
                        while chunk := response.read(CHUNK):
                            file.write(chunk)
                            progress.update(task, completed=file.tell())
            except HTTPError as error:
                if error.code != 416:  # it is asked for what lies behind its end
                    raise
                if error.headers.get('Content-Range') == f'bytes */{have}':
                    return
                part.unlink()
                continue
            except (OSError, HTTPException) as error:
                broken = error
            size = part.stat().st_size if part.exists() else 0
            if not broken and total in (None, size):
                return
            if size <= have:
                raise broken or OSError('the connection broke off')


def verify(path: Path, checksum: str, address: str):
    """Delete a file whose SHA-256 does not begin with ``checksum``, and raise ValueError."""
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
