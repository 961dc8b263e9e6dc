"""Published weights by name: which there are (weights.yml), which a backbone takes, their files."""
import difflib
import re
from functools import cache
from pathlib import Path

import yaml

from . import download

LIST = Path(__file__).with_name('weights.yml')
SUFFIXES = '.pth', '.pt', '.safetensors'
NAME = re.compile(r'[a-zA-Z0-9_]+')  # what no path to a weight file looks like: it has a suffix


@cache
def known() -> dict[str, dict]:
    """The entries of weights.yml, by name."""
    return yaml.safe_load(LIST.read_text(encoding='utf-8'))


def is_name(source: str) -> bool:
    """Whether this can only be the name of published weights: it is no URL and no file."""
    return bool(NAME.fullmatch(source)) and not Path(source).exists()


def entry_of(name: str) -> dict:
    """A name's entry.

    Raises:
        ValueError: there is none; the message lists close ones.
    """
    if name not in known():
        close = difflib.get_close_matches(name, known(), n=4, cutoff=0.5)
        raise ValueError(f'there is no weight file {name}, and no published weights have that '
                         'name' + (f'; did you mean {", ".join(close)}?' if close else
                                   ' (docs/weights.md lists the names)'))
    return known()[name]


def folder_of(name: str) -> Path:
    """Where the file of a name lies, or is to be put by hand."""
    return download.cache() / name


def file_of(name: str) -> Path | None:
    """The file of a name, if it is there: the only weight file in its folder.

    Raises:
        ValueError: there are several, of which none came by itself.
    """
    found = sorted(path for path in folder_of(name).glob('*') if path.suffix in SUFFIXES)
    if len(found) > 1:
        found = [path for path in found if download.is_noted(path)][:1] or found
    if len(found) > 1:
        raise ValueError(f'{folder_of(name)} has {" and ".join(path.name for path in found)}: '
                         f'leave the one that is {name}')
    return found[0] if found else None


def fetch_named(name: str) -> Path:
    """The local file of published weights, downloaded if it is not there yet.

    Several processes may ask for it at once. Its SHA-256 is noted when it is first there, and
    verified whenever it is asked for.

    Raises:
        ValueError: no such name; the file cannot be had (what to do by hand is said); or it is not
            the one that it was.
    """
    entry, folder = entry_of(name), folder_of(name)
    checksum, size = str(entry.get('sha256') or ''), entry.get('size')
    download.make_folder(folder, name)
    with download.locked(folder):
        path = file_of(name)
        if path is None:
            try:
                if not entry['sources']:
                    raise ValueError('it is nowhere to be downloaded without a person')
                path = download.get_any(entry['sources'], folder, checksum, size)
            except ValueError as error:
                raise ValueError(by_hand(name, entry, error)) from None
        elif not download.is_noted(path):  # a person put it there
            if size not in (None, path.stat().st_size):
                raise ValueError(f'{path} has {path.stat().st_size:,} bytes, {name} has {size:,}: '
                                 'it is another file, or not all of it')
            download.verify(path, checksum, name)
            download.note(path)
        else:
            download.check_noted(path)
    return path


def by_hand(name: str, entry: dict, error: ValueError) -> str:
    """What to do when weights cannot be downloaded."""
    places = [*entry['sources'], *filter(None, [entry.get('by_hand')])]
    return (f'{name} cannot be fetched here:\n  ' + '\n  '.join(str(error).splitlines())
            + '\nDownload one of these where you can:\n  ' + '\n  '.join(places)
            + f'\nand put the file, with its suffix, into the folder\n  {folder_of(name)}\n'
            'Then the same command finds it.')


def weights_for(kind: str) -> str | None:
    """The name of the ImageNet weights of a backbone, None where none were published.

    Args:
        kind: which backbone it is, from ``pretrained.kind_of``.
    """
    return next((name for name, entry in known().items() if 'backbone' in entry
                 and re.match(re.escape(entry['backbone']) + r'( \(|$)', kind)), None)


def released_for(experiment: str) -> str | None:
    """The name of the released detector or segmentor of an experiment, if there is one."""
    return next((name for name, entry in known().items()
                 if entry.get('config') == experiment), None)
