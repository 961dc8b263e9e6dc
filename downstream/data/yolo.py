"""YOLO's label files as Ultralytics has them: data.yaml, and a text file an image.

A line is `class x y width height`, the box' centre and size, or `class x1 y1 x2 y2 x3 y3 ...`, a
polygon; all numbers but the class are fractions of the image as it is shown, with EXIF's rotation.
Source: https://docs.ultralytics.com/datasets/segment, and of the places check_det_dataset and
img2label_paths in ultralytics/data/utils.py.
"""
import os
from pathlib import Path

from ..errors import UserError, shown
from .files import images_in, read_lines, read_list, read_yaml
from .labels import Labels, box_around, class_names, flat

SLACK = 0.01  # fractions are rounded, some tools let a box reach over the border
MISTAKES = {
    'lines hold something that is no number': '',
    'lines have a wrong number of values': 'a box is class x y width height, a polygon class '
                                           'x1 y1 x2 y2 x3 y3 ...',
    'lines have a class number without a name': 'the names are those in data.yaml or classes.txt',
    'lines have coordinates outside 0..1': 'they are fractions of the width and height, not pixels',
    'label files are no text': '',
}
NUMBER, LENGTH, CLASS, RANGE, TEXT = MISTAKES


# -- the set -----------------------------------------------------------------------------------

def describes(said) -> bool:
    """Whether a YAML file is Ultralytics': it names its classes otherwise than ours."""
    return isinstance(said, dict) and bool({'names', 'nc'} & said.keys())


def file_in(root: Path) -> Path | None:
    """Ultralytics' file in a folder, usually data.yaml.

    Raises:
        UserError: there are several.
    """
    files = [path for path in sorted(root.glob('*.y*ml'))
             if path.is_file() and describes(read_yaml(path))]
    if len(files) > 1:
        raise UserError(f'--data {root}: it has several files that describe it; say which, --data '
                        + ' or --data '.join(map(str, files)))
    return files[0] if files else None


def read_names(path: Path, said: dict) -> dict[int, str]:
    """The class names by their numbers, in that order.

    Raises:
        UserError: they are not names, some are the same, or nc is another number.
    """
    names = said.get('names')
    if isinstance(names, list):
        names = dict(enumerate(names))
    if not (isinstance(names, dict) and names and all(
            isinstance(key, int) and not isinstance(key, bool) for key in names)):
        raise UserError(f'{path}: names is {shown(names)}, not a list of class names or of '
                        '{number: name}')
    order = sorted(names)
    names = dict(zip(order, class_names(path, [names[number] for number in order]), strict=True))
    if said.get('nc', len(names)) != len(names):
        raise UserError(f'{path}: nc is {shown(said["nc"])}, but there are {len(names)} names')
    return names


def names_beside(root: Path, labels: Path) -> dict[int, str]:
    """The class names in classes.txt or obj.names, one a line, where there is no data.yaml.

    Raises:
        UserError: there is none.
    """
    for folder in (root, labels, labels.parent):
        for name in ('classes.txt', 'obj.names'):
            if (file := folder / name).is_file():
                return read_names(file, dict(names=read_list(file)))
    raise UserError(f'--data {root}: label files hold class numbers, so somebody has to say what '
                    f'they mean: put the names of 0, 1, 2, … into {root / "classes.txt"}, one a '
                    'line, or describe the data in a data.yaml (train, val, names)')


def numbers_after_box(path: Path, said: dict) -> int:
    """Of a pose data set: how many numbers of keypoints follow a box."""
    shape = said.get('kpt_shape') or (0, 0)
    if not isinstance(shape, list | tuple) or len(shape) != 2 or not all(
            isinstance(number, int) for number in shape):
        raise UserError(f'{path}: kpt_shape is {shown(shape)}, not [points, numbers of each]')
    return shape[0] * shape[1]


def images_of(path: Path, said: dict) -> tuple[dict[str, list[Path]], list[str], str]:
    """The images of each split of a data.yaml, the lines to log, and in words what is not there.

    Places are relative to the file's `path`, which is relative to the file: a folder, a text file
    with paths of images, or a list of such.

    Raises:
        UserError: a place holds no images, or a text file has one that is not there.
    """
    root, notes, splits = path.parent / str(said.get('path') or '.'), [], {}
    if not root.is_dir():  # as on another machine
        notes.append(f'{path}: there is no {root}; its own folder is taken')
        root = path.parent
    for split, places in (('train', said.get('train')),
                          ('val', said.get('val') or said.get('validation')),
                          ('test', said.get('test'))):
        files = []
        for place in places if isinstance(places, list) else [places] if places else []:
            # Roboflow writes ../train/images for a folder beside the file.
            near = root / str(place), root / str(place).removeprefix('../')
            found = next((option for option in near if option.exists()), None)
            if found is None and split == 'test':  # often said, and not exported
                notes.append(f'{path}: there is no {near[0]}, its test: done without')
                break
            if found is None:
                return {}, notes, f'{path}: {split} is {shown(place)}, but there is no {near[0]}'
            found = Path(os.path.abspath(found))  # links stay: labels lie beside their names
            more = images_in(found) if found.is_dir() else listed(found, root)
            if not more:
                raise UserError(f'{path}: {split} is {place}, which holds no images')
            files += more
        if files:
            splits[split] = files
    if 'train' not in splits:
        return {}, notes, f'{path} does not say where the images of train are'
    return splits, notes, ''


def listed(path: Path, root: Path) -> list[Path]:
    """The images in a text file, one path a line, relative to it or to the data's root."""
    files = []
    for number, line in read_lines(path):
        options = path.parent / line, root / line
        found = next((option for option in options if option.is_file()), None)
        if not found:
            raise UserError(f'{path}:{number}: there is no {options[0]}')
        files.append(Path(os.path.abspath(found)))
    return files


def label_file(image: Path) -> Path:
    """The label file of an image: in labels/ where the image is in images/, or beside it."""
    before, between, after = str(image.with_suffix('.txt')).rpartition(f'{os.sep}images{os.sep}')
    there = Path(f'{before}{os.sep}labels{os.sep}{after}')
    return there if between and there.is_file() else image.with_suffix('.txt')


# -- a label file ------------------------------------------------------------------------------

def read(labels: Labels, size: tuple[int, int], names: dict[int, str], keypoints: int = 0):
    """Read a label file.

    Args:
        labels: gets the objects and what is wrong.
        size: (width, height) of the image in pixels.
        names: by class number.
        keypoints: numbers that follow a box, which are not read.
    """
    labels.size = size
    try:
        lines = read_lines(labels.path)
    except UserError:
        labels.wrong(TEXT)
        return
    for line, text in lines:
        try:
            number, *values = map(float, text.split())
        except ValueError:
            labels.wrong(NUMBER, line)
            continue
        if keypoints and len(values) == 4 + keypoints:
            values = values[:4]
        if len(values) < 4 or len(values) != 4 and (len(values) % 2 or keypoints):
            labels.wrong(LENGTH, line, len(values) + 1)
        elif number not in names:
            labels.wrong(CLASS, line, f'{number:g}')
        elif not all(-SLACK <= value <= 1 + SLACK for value in values):
            labels.wrong(RANGE, line)
        else:
            labels.objects.append(dict(shape_of(values, size), name=names[number],
                                       place=f'{labels.name}:{line}'))


def shape_of(values: list[float], size: tuple[int, int]) -> dict:
    """COCO's box, and polygon, of a line's fractions."""
    width, height = size
    if len(values) == 4:
        x, y, w, h = values
        return dict(bbox=[(x - w / 2) * width, (y - h / 2) * height, w * width, h * height])
    points = [(x * width, y * height)
              for x, y in zip(values[::2], values[1::2], strict=True)]
    return dict(bbox=box_around(points), segmentation=[flat(points)])
