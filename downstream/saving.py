"""Files that are whole: written under another name, flushed to the disk, renamed.

A process that is killed, or a disk that is full, leaves what was there before. mmengine's way of
writing local files (checkpoints, predictions, pictures) is replaced by this one when the module is
imported.
"""
import contextlib
import os
import shutil
from pathlib import Path

import cv2
import numpy as np
from mmengine.fileio import LocalBackend, register_backend
from mmengine.registry import VISBACKENDS
from mmengine.visualization import LocalVisBackend

from .errors import DISK_FULL, UserError


@contextlib.contextmanager
def whole_file(path: str | Path, size: int | None = None):
    """Around the writing of a file: gives the path to write to, which then takes the file's place.

    Args:
        size: bytes that it will have, if that is known.

    Raises:
        UserError: the disk is full; what was written of the new file is removed.
    """
    path = Path(path)
    path = path.resolve() if path.is_symlink() else path
    if path.exists() and not path.is_file():  # a pipe, /dev/null
        yield path
        return
    part = path.with_name(f'.{path.name}.{os.getpid()}.part')  # others may write the same
    try:
        yield part
        sync(part)
        part.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            part.unlink()
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            raise UserError(disk_full(path, size)) from None
        raise
    sync(path.parent)


def write_whole(path: str | Path, content: bytes | str):
    """Write a file, its folder too; text in UTF-8. Raises as ``whole_file``."""
    content = content.encode() if isinstance(content, str) else content
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path, len(content)) as part:
        part.write_bytes(content)


def sync(path: Path):
    """Wait until a file, or a folder's list of names, is on the disk."""
    with contextlib.suppress(OSError):  # some file systems know no fsync of folders
        number = os.open(path, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def disk_full(path: Path, needed: int | None = None) -> str:
    free = shutil.disk_usage(path.absolute().parent).free
    return (f'{path} could not be written: '
            + (f'it takes {in_units(needed)}, and ' if needed else 'the disk is full, ')
            + f'{in_units(free)} are free there (or a quota is used up). What was there before is '
              'as it was. Make room, or write to another disk')


def in_units(size: float) -> str:
    """A number of bytes, in words."""
    for unit in ('bytes', 'KiB', 'MiB', 'GiB'):
        if size < 1024 or unit == 'GiB':
            return f'{size:.{0 if unit == "bytes" else 1}f} {unit}'
        size /= 1024


@VISBACKENDS.register_module(name='LocalVisBackend', force=True)
class WholePictures(LocalVisBackend):
    """mmengine's files of curves and pictures; a picture that cannot be written is an error."""

    def add_image(self, name: str, image: np.ndarray, step: int = 0, **_):
        self.experiment  # noqa: B018  makes the folders
        content = cv2.imencode('.png', np.ascontiguousarray(image[..., ::-1]))[1]
        write_whole(Path(self._img_save_dir, f'{name}_{step}.png'), content.tobytes())


@register_backend('local', force=True, prefixes='')
class WholeFiles(LocalBackend):
    """mmengine's local files, always whole."""

    def put(self, obj: bytes | memoryview, filepath: str | Path):
        write_whole(filepath, bytes(obj))

    def put_text(self, obj: str, filepath: str | Path, encoding: str = 'utf-8'):
        write_whole(filepath, obj.encode(encoding))
