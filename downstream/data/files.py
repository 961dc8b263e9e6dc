"""Files of a data set: images in folders, YAML, lists, and what is kept in a work dir."""
import contextlib
import gc
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from ruamel.yaml import YAML, YAMLError

from ..errors import UserError
from ..saving import write_whole

WAYS = 100  # more than that lead to no folder of a data set, by links
IMAGES = '.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp'


def walk(folder: str, above: tuple = (), times: Counter | None = None) -> Iterator[str]:
    """The files below a folder, in links to folders too, but no pipes and devices: they block.

    Raises:
        UserError: a folder cannot be read, or links lead to it again and again.
    """
    times = Counter() if times is None else times
    try:
        status = os.stat(folder)
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise UserError(f'the folder {folder} cannot be read: {error.strerror}') from None
    here = status.st_dev, status.st_ino
    times[here] += 1
    if times[here] > WAYS:  # ten folders that link to each other are a million folders
        raise UserError(f'over {WAYS} links lead to the folder {os.path.realpath(folder)}: take '
                        'out those that folders of the data have to each other')
    for entry in entries if here not in above else ():  # a link may lead back up
        if os.path.isdir(entry) if entry.is_symlink() else entry.is_dir():
            yield from walk(entry.path, (*above, here), times)
        elif os.path.isfile(entry) if entry.is_symlink() else entry.is_file():
            yield entry.path


def files_in(folder: Path) -> Iterator[Path]:
    """:func:`walk`, as paths."""
    return map(Path, walk(str(folder)))


def images_in(folder: Path) -> list[Path]:
    """The images below a folder, but none that are hidden (macOS puts ._NAME.jpg beside others)."""
    return sorted(path for path in files_in(folder)
                  if path.suffix.lower() in IMAGES and not path.name.startswith('.'))


def read_yaml(path: Path):
    """What a YAML file says.

    Raises:
        UserError: it is not YAML, not UTF-8, or has tags that make objects.
    """
    try:
        # YAML 1.2, in which a class may be called `no`
        return YAML(typ='safe').load(path.read_text(encoding='utf-8-sig'))
    except OSError as error:
        raise UserError(f'{path} cannot be read: {error.strerror}') from None
    except RecursionError:
        raise UserError(f'{path} is nested too deeply') from None
    except (YAMLError, ValueError) as error:  # ValueError: no UTF-8, the 99th of a month
        words = ' '.join(str(error).split())
        raise UserError(f'{path} is not a YAML file: {words}') from None


def read_lines(path: Path) -> list[tuple[int, str]]:
    """(number, text) of the lines that are not blank.

    Raises:
        UserError: it is not a text file.
    """
    try:
        lines = path.read_text(encoding='utf-8-sig').splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f'{path} is not a text file in UTF-8: {error}') from None
    except OSError as error:
        raise UserError(f'{path} cannot be read: {error.strerror}') from None
    return [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]


def read_list(path: Path) -> list[str]:
    """The names in a text file, one a line, which number them.

    Raises:
        UserError: it is not a text file, or a line before another is blank.
    """
    lines = read_lines(path)
    for expected, (number, _) in enumerate(lines, 1):
        if number != expected:
            raise UserError(f'{path}:{expected}: the line is blank, where a name is expected: '
                            'names are numbered by their lines')
    return [line for _, line in lines]


def write_json(path: Path, content: dict | list) -> Path:
    """Write a file at once: several processes write the same at the same time."""
    write_whole(path, json.dumps(content))
    return path


def listed(names: list[str]) -> list[str]:
    """File names as they lie in a data set's folder.

    Objects365 lists images/v1/patch8/NAME for what lies in patch8/, and three images that were
    never published (mmdet knows which). Of other data sets they are as listed.
    """
    if not any('/patch' in name for name in names):
        return names
    from mmdet.datasets.objects365 import objv2_ignore_list
    short = ['/'.join(name.split('/')[-2:]) for name in names]
    return [name for name in short if name not in objv2_ignore_list]


@contextlib.contextmanager
def without_collector():
    """Let Python not look for cycles meanwhile.

    Among the millions of lists of an annotation file, which has none, that takes longer than
    reading them.
    """
    there = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if there:
            gc.enable()
