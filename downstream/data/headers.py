"""Sizes and EXIF rotations of images, from their headers."""
import io
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from PIL import ExifTags, Image

from ..progress import Progress
from .cache import Cache, Files

SIDEWAYS = 5, 6, 7, 8  # EXIF orientations that exchange width and height
PART = 200  # images that a thread reads at a time: handing over one takes as long as reading it

BOMB = 'an image of more pixels than any machine should decode'

Header = tuple[tuple[int, int], int]  # ((width, height) as stored, EXIF orientation)


def header(path) -> Header | str:
    """An image's header, or in words why there is none."""
    try:
        with Image.open(path) as image:
            return image.size, image.getexif().get(ExifTags.Base.Orientation, 1)
    except Image.DecompressionBombError:
        return BOMB
    except Exception as error:  # what a damaged header makes Pillow do is anybody's guess
        return f'{type(error).__name__}'


def check_pixels(content: bytes):
    """Raise OSError where an image's header claims more pixels than Pillow takes (179 million).

    OpenCV takes six times as many, and fills gigabytes with what a few bytes say.
    """
    try:
        Image.open(io.BytesIO(content)).close()
    except Image.DecompressionBombError:
        raise OSError(BOMB) from None
    except Exception:  # damaged, or of a kind that OpenCV alone knows: it will see
        return


def headers(paths: Iterable) -> list[Header | str]:
    """The header of each image, as :func:`header`; of those that are known, none is opened."""
    entries = [(os.fspath(path), ) for path in paths]
    if not entries:
        return []
    return [found if isinstance(found, str) else ((found[0], found[1]), found[2])
            for found in Cache('headers', entries).read(read)]


def read(entries: list[Files]) -> Iterator[list[int] | str]:
    """Disks of a network answer many requests at once, hence threads."""
    def part(start: int):
        found = [header(path) for path, in entries[start:start + PART]]
        return [one if isinstance(one, str) else [*one[0], int(one[1])] for one in found]

    with ThreadPoolExecutor() as pool, Progress(
            desc='reading image headers', total=len(entries), unit='images', delay=1) as line:
        for found in pool.map(part, range(0, len(entries), PART)):
            line.update(len(found))
            yield from found


def shown_size(found: Header) -> tuple[int, int]:
    """(width, height) of an image as EXIF turns it."""
    size, orientation = found
    return size[::-1] if orientation in SIDEWAYS else size
