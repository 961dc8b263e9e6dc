"""COCO, ADE20K and Objects365: from their owners' archives to a folder known to be whole."""
import functools
import json
import multiprocessing
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from backbones import download
from backbones.download import Meter

from ..errors import UserError
from .checks import some
from .files import listed, read_yaml
from .unpacking import unpack

SOURCES = Path(__file__).with_name('sources.yml')
DOWNLOADS = 'downloads'  # the folder in a data set's for its archives, until they are unpacked
ARCHIVES = '.zip', '.tar', '.gz', '.tgz'
BATCH = 200  # files that a process looks at before it tells


def sources() -> dict[str, dict]:
    """The data sets of sources.yml, each with what the one has that it adds to."""
    known = read_yaml(SOURCES)
    for spec in known.values():
        if base := known.get(spec.get('with')):
            spec['archives'] = base['archives'] + spec['archives']
            spec['splits'] = base['splits'] + spec['splits']
    return known


def root_of(spec: dict) -> Path:
    """Where a data set lies, or would."""
    variable, default = spec['root']
    return Path(os.environ.get(variable) or default)


def prepare(spec: dict, root: Path, keep_archives: bool = False, full: bool = False) -> str:
    """Fetch what a data set lacks, unpack and verify it. The same call goes on after a stop.

    Args:
        spec: an entry of ``sources``.
        root: the data set's folder.
        keep_archives: do not delete the archives that were fetched, once they are unpacked.
        full: decode every image.

    Returns:
        What is there, in words.

    Raises:
        UserError: something cannot be had or has no room, with what to do by hand; or the data is
            not whole although all archives were unpacked.
    """
    folder = root / DOWNLOADS
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f'{folder} cannot be made: {error}') from None
    with download.locked(folder):
        check_room([part for part in parts_of(spec) if not is_done(part, spec, root)], root,
                   keep_archives)
        for part in parts_of(spec):
            if not is_done(part, spec, root):
                fetch_and_unpack(part, root, keep_archives)
        problems = check(spec, root, full)
    if problems:
        raise UserError(f'{root} is not whole:\n  ' + '\n  '.join(problems) + '\n'
                        'Delete what is wrong, and the .done files of its archives in '
                        f'{folder}, and the same command fetches it again')
    variable = spec['root'][0]
    tell = '' if root_of(spec).resolve() == root.resolve() else (
        f'\nFor the configs to find it: export {variable}={root.resolve()}')
    return f'{root} is whole: {contents(spec, root)}{tell}'


def parts_of(spec: dict) -> Iterator[dict]:
    """A data set's archives, numbered ones one by one."""
    for part in spec['archives']:
        first = part.get('first', 0)
        for number in range(first, first + part.get('count', 1)):
            numbered = dict(part)
            numbered['from'] = [url.replace('{n}', str(number)) for url in part['from']]
            numbered['as'] = part.get('as', download.name_in(part['from'][0]))
            for key in 'as', 'covers':
                if key in numbered:
                    numbered[key] = numbered[key].replace('{n}', str(number))
            yield numbered


def marker(part: dict, root: Path) -> Path:
    """The file that says that an archive was unpacked to its end."""
    return root / DOWNLOADS / f'{part["as"]}.done'


def coming(part: dict, root: Path) -> Path:
    """An archive's own folder while it is downloaded: several may have the same name."""
    return root / DOWNLOADS / f'{part["as"]}.coming'


def is_done(part: dict, spec: dict, root: Path) -> bool:
    """Whether an archive was unpacked, here or by hand."""
    if marker(part, root).exists():
        return True
    if 'covers' in part:  # there are no numbers: a list has to name all that should be there
        split = next(split for split in spec['splits'] if split['images'] == part['into'])
        expected = {name.partition('/')[2] for name in names_of(split, root, []) or ()
                    if name.partition('/')[0] == part['covers']}
        folder = root / part['into'] / part['covers']
        return bool(expected) and expected <= names_in(folder)
    return bool(part.get('holds')) and all(
        (root / name).is_file() if number == 1 else count_in(root / name) >= number
        for name, number in part['holds'].items())


def count_in(folder: Path) -> int:
    return sum(not entry.name.endswith('.part') for entry in os.scandir(folder)
               ) if folder.is_dir() else 0


def check_room(todo: list[dict], root: Path, keep_archives: bool):
    """Raise UserError where the disk cannot hold archives and files; images hardly shrink in a zip.

    The servers are asked for the sizes; what they do not say is not counted.
    """
    most = unpacked = 0
    for part in todo:
        have = sum(path.stat().st_size for path in (
            *(root / DOWNLOADS).glob(part['as']), *coming(part, root).glob('*.part')))
        size = next(filter(None, map(download.size_of, part['from'])), 0)
        most = max(most, unpacked + 2 * size - have)
        unpacked += size * (2 if keep_archives else 1) - have
    try:
        download.check_space(root, max(most, unpacked))
    except OSError as error:
        raise UserError(f'{error}, for the archives and what is in them; --root FOLDER takes '
                        'another disk') from None


def fetch_and_unpack(part: dict, root: Path, keep_archives: bool):
    """One archive: downloaded unless it lies there, unpacked, noted as done."""
    folder, into = root / DOWNLOADS, root / part.get('into', '')
    archive = folder / part['as']
    try:
        if archive.exists():
            if download.is_noted(archive):
                download.check_noted(archive)
        else:
            came = download.get_any(part['from'], coming(part, root))
            came.rename(archive)
            download.note_of(came).rename(download.note_of(archive))
            came.parent.rmdir()
    except (ValueError, OSError) as error:
        raise UserError(f'{part["as"]} cannot be had:\n  ' + '\n  '.join(str(error).splitlines())
                        + '\nDownload it where you can:\n  ' + '\n  '.join(part['from'])
                        + f'\nand put it there:\n  {archive}\nThen the same command goes on.'
                        ) from None
    ours = download.is_noted(archive)
    if archive.suffix in ARCHIVES:
        unpack(archive, into, part.get('strip', ''), part.get('flat', False))
        for name in part.get('inner', ()):
            inner = root / name
            if inner.is_file():
                unpack(inner, inner.parent)
                inner.unlink()
    else:  # a file as it is
        into.mkdir(parents=True, exist_ok=True)
        if keep_archives or not ours:
            shutil.copy(archive, into)
        else:
            archive.replace(into / archive.name)
    marker(part, root).touch()
    if ours:
        download.note_of(archive).unlink()
        if not keep_archives:
            archive.unlink(missing_ok=True)


# -- verifying ---------------------------------------------------------------------------------

def check(spec: dict, root: Path, full: bool = False, processes: int | None = None) -> list[str]:
    """What is wrong with a data set: missing, of another number, truncated; [] if nothing.

    Args:
        spec: an entry of ``sources``.
        root: the data set's folder.
        full: decode every image; else its two ends are looked at.
        processes: that share the work; one for each core by default.
    """
    problems, files = [], {}
    for split in spec['splits']:
        folder = root / split['images']
        names = names_of(split, root, problems)
        if names is None:
            continue
        if split.get('count') not in (None, len(names)):
            problems.append(f'{split.get("list", split["images"])}: {len(names):,} images, not '
                            f'{split["count"]:,}')
        wanted = {folder: names}
        if 'maps' in split:
            wanted[root / split['maps']] = [f'{name.rpartition(".")[0]}.png' for name in names]
        for place, expected in wanted.items():
            there = names_in(place)
            missing = [name for name in expected if name not in there]
            if missing:
                problems.append(f'{place}: {len(missing):,} of {len(expected):,} files are not '
                                f'there: {some(missing)}')
            files.update(dict.fromkeys(place / name for name in expected if name in there))
    broken = broken_files(list(files), full, processes)
    if broken:
        problems += [f'{len(broken):,} files are truncated or no images:',
                     *(f'  {path}: {why}' for path, why in list(broken.items())[:10])]
    return problems


def names_of(split: dict, root: Path, problems: list[str]) -> list[str] | None:
    """The images of a split, as a list or the folder itself names them; adds to the problems."""
    if 'list' not in split:
        names = sorted(name for name in names_in(root / split['images']) if name.endswith('.jpg'))
        if not names:
            problems.append(f'{root / split["images"]} is not there, or has no *.jpg')
        return names or None
    path = root / split['list']
    try:
        names = read_names(path, path.stat().st_mtime_ns)
    except OSError:
        problems.append(f'{path} is not there')
        return None
    except (ValueError, KeyError, TypeError):
        problems.append(f'{path} is not in COCO\'s format, or not all of it')
        return None
    return listed(names)


@functools.lru_cache(4)
def read_names(path: Path, changed: int) -> list[str]:
    """The images that a file in COCO's format lists."""
    with path.open(encoding='utf-8') as file:
        return [image['file_name'] for image in json.load(file)['images']]


def names_in(folder: Path) -> set[str]:
    """Files below a folder, relative to it, down to one level of folders."""
    found = set()
    for entry in os.scandir(folder) if folder.is_dir() else ():
        if entry.is_dir():
            found.update(f'{entry.name}/{name}' for name in os.listdir(entry.path))
        else:
            found.add(entry.name)
    return found


def broken_files(paths: list[Path], full: bool, processes: int | None) -> dict[Path, str]:
    """Images that are not whole, and why."""
    batches = [(paths[i:i + BATCH], full) for i in range(0, len(paths), BATCH)]
    broken = {}
    # forked before the meter has a thread
    with multiprocessing.get_context('fork').Pool(processes) as pool, \
            Meter('verifying images', len(paths)) as meter:
        for number, found in enumerate(pool.imap_unordered(look_at, batches), 1):
            broken.update(found)
            meter.to(min(number * BATCH, len(paths)))
    return dict(sorted(broken.items()))


def look_at(batch) -> dict[Path, str]:
    paths, full = batch
    return {path: why for path in paths if (why := fault(path, full))}


def fault(path: Path, full: bool = False) -> str | None:
    """What is wrong with an image file, if anything.

    A JPEG or PNG that ends as it should is taken for whole; of others all is decoded, and of any
    with ``full``.
    """
    try:
        with path.open('rb') as file:
            begin = file.read(8)
            file.seek(0, os.SEEK_END)
            file.seek(max(file.tell() - 64, 0))
            end = file.read().rstrip(b'\0')
            whole = (begin[:2] == b'\xff\xd8' and end[-2:] == b'\xff\xd9'
                     or begin == b'\x89PNG\r\n\x1a\n' and b'IEND' in end[-8:])
            if full or not whole:
                file.seek(0)
                Image.open(file).load()
    except Exception as error:  # Pillow's plugins raise of any kind
        return str(error) or type(error).__name__
    return None


def contents(spec: dict, root: Path) -> str:
    """'118,287 images in train2017, ...'"""
    counts = Counter()
    for split in spec['splits']:
        for key in ('images', 'maps'):
            if key in split:
                counts[split[key]] = len(names_in(root / split[key]))
    return ', '.join(f'{number:,} files in {folder}' for folder, number in counts.items())
