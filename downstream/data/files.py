"""Files of a data set: images in folders, YAML, lists, and what is kept in a work dir."""
import contextlib
import gc
import json
import os
from pathlib import Path

from ruamel.yaml import YAML, YAMLError

from ..errors import UserError

IMAGES = '.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp'


def images_in(folder: Path) -> list[Path]:
    """The images below a folder, but none that are hidden (macOS puts ._NAME.jpg beside others)."""
    return sorted(path for path in folder.rglob('*')
                  if path.suffix.lower() in IMAGES and not path.name.startswith('.'))


def read_yaml(path: Path):
    try:
        # YAML 1.2, in which a class may be called `no`
        return YAML(typ='safe').load(path.read_text(encoding='utf-8-sig'))
    except (YAMLError, UnicodeDecodeError) as error:
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
    return [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]


def write_json(path: Path, content: dict | list) -> Path:
    """Write a file at once: several processes write the same at the same time."""
    part = path.with_suffix(f'.{os.getpid()}')
    part.write_text(json.dumps(content))
    return part.replace(path)


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
