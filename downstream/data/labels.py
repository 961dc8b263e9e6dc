"""What the label file of one image says, whichever annotation tool wrote it."""
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import UserError, shown


@dataclass
class Labels:
    """The objects in a label file, and what is wrong with it.

    Attributes:
        path: of the file.
        name: of the file, short.
        size: (width, height) of the image, as the file says; None where it does not.
        objects: dicts with 'name', 'bbox' (x, y, width, height in pixels), 'place', and maybe
            'segmentation' (polygons or run lengths) and 'iscrowd', as COCO has them.
        slips: (what is wrong, place), the place being a file and its line.
        image: the image that the file is of.
    """
    path: Path
    name: str
    size: tuple[int, int] | None = None
    objects: list[dict] = field(default_factory=list)
    slips: list[tuple[str, str]] = field(default_factory=list)
    image: Path | None = None

    def wrong(self, what: str, where: object = '', why: object = ''):
        """Note a mistake at a line (or whatever the file is made of)."""
        self.slips.append((what, f'{self.name}:{where}'.rstrip(':') + (f': {why}' if why else '')))


def box_around(points: list[tuple[float, float]]) -> list[float]:
    """[x, y, width, height] of the smallest box that holds points."""
    xs, ys = zip(*points, strict=True)
    return [min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)]


def flat(points: list[tuple[float, float]]) -> list[float]:
    """Points as COCO has a polygon: [x1, y1, x2, y2, ...]."""
    return [value for point in points for value in point]


def class_names(where: object, names: list) -> tuple[str, ...]:
    """Names of classes as text; whole numbers are names too.

    Args:
        where: the file that has them.

    Raises:
        UserError: one is no name, is empty, has control characters, or two are the same.
    """
    for name in names:
        if not isinstance(name, str | int) or isinstance(name, bool):
            raise UserError(f'{where}: the class name {shown(name)} is no text; in quotes it is')
        if not str(name).strip():
            raise UserError(f'{where}: a class has an empty name')
        if not str(name).strip().isprintable():
            raise UserError(f'{where}: the class name {shown(name)} has control characters')
    texts = tuple(str(name).strip() for name in names)
    for name in texts:
        if texts.count(name) > 1:
            raise UserError(f'{where}: several classes are called {name!r}; names have to differ')
    return texts
