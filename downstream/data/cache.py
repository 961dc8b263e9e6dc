"""What was read of files, kept for the next time; a file that was changed is read anew.

It lies in $DOWNSTREAM_CACHE, or else in $XDG_CACHE_HOME/downstream-backbones, ~/.cache by default,
and may be deleted. A cache that is damaged, of another version or cannot be written is none.
"""
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

VERSION = 1  # of what is kept: another number when the same file would be read differently

Files = tuple[str, ...]  # paths of what belongs together, such as an image and its label map


def cache_folder() -> Path:
    own = os.environ.get('DOWNSTREAM_CACHE')
    return Path(own) if own else (Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache')
                                  / 'downstream-backbones')


def state(files: Files) -> list[int] | None:
    """What changes with the content of files: sizes and times. None where one is not there."""
    try:
        return [number for path in files for found in [os.stat(path)]
                for number in (found.st_size, found.st_mtime_ns, found.st_ctime_ns)]
    except OSError:
        return None


class Cache:
    """What was read of some files.

    Args:
        kind: what is read of them, such as 'headers'.
        entries: the files; what is kept of those in one folder lies together.
    """

    def __init__(self, kind: str, entries: list[Files]):
        self.entries, self.states = entries, [state(files) for files in entries]
        folder = os.path.dirname(os.path.commonprefix([files[0] for files in entries]))
        name = hashlib.sha256(os.path.abspath(folder).encode(errors='surrogateescape')).hexdigest()
        self.file = cache_folder() / f'{kind}-{VERSION}' / f'{name[:32]}.json'
        self.kept = load(self.file)

    def known(self) -> list:
        """What is kept of each entry, None where there is nothing or the files have changed."""
        found = [self.kept.get('\0'.join(files)) for files in self.entries]
        return [kept[1] if kept and now and kept[0] == now else None
                for kept, now in zip(found, self.states, strict=True)]

    def read(self, how: Callable[[list[Files]], Iterable]) -> list:
        """What ``how`` finds of each entry, which has to be plain JSON; text is not kept.

        What was read before an interruption is kept too.
        """
        found = self.known()
        lacking = [i for i, value in enumerate(found) if value is None]
        new = {}
        try:
            for i, value in zip(lacking, how([self.entries[i] for i in lacking]), strict=True):
                found[i] = value
                if self.states[i] and not isinstance(value, str):
                    new['\0'.join(self.entries[i])] = [self.states[i], value]
        finally:
            if new:
                save(self.file, {**self.kept, **new})
        return found


def load(file: Path) -> dict:
    """What :func:`save` wrote, {} where that is damaged or not there."""
    with suppress(OSError, ValueError):
        digest, _, content = file.read_bytes().partition(b'\n')
        if digest.decode() == hashlib.sha256(content).hexdigest():
            return json.loads(content)
    return {}


def save(file: Path, content: dict):
    """Write a file at once, if it can be written: others may be reading or writing it."""
    text = json.dumps(content, separators=(',', ':')).encode()
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as part:
            try:
                part.write(hashlib.sha256(text).hexdigest().encode() + b'\n' + text)
                part.close()
                os.replace(part.name, file)
            except BaseException:
                os.unlink(part.name)
                raise
