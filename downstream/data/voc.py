"""Pascal VOC's annotations: an XML file an image, with boxes.

Pixels are counted from 1 and xmax, ymax belong to the box, so that xmin = 1 and xmax = width is a
box as wide as the image: in COCO's coordinates x = xmin - 1 and width = xmax - xmin + 1. Many tools
count from 0; that is seen where a corner is at 0. Objects marked difficult become COCO's crowds,
which are neither learned nor counted as missed, as mmdet's VOC data sets have it.
Source: the VOC 2012 development kit, http://host.robots.ox.ac.uk/pascal/VOC/voc2012/devkit_doc.pdf
"""
import math
from pathlib import Path
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from ..errors import UserError
from .files import images_in, read_lines
from .labels import Labels

CORNERS = 'xmin', 'ymin', 'xmax', 'ymax'
MISTAKES = {
    'files are not XML, or not all of it': '',
    "files are XML, but not Pascal VOC's": 'an annotation with objects',
    'files declare a document type': 'take <!DOCTYPE ...> out: what it may define is not expanded',
    'objects have no name': '',
    'objects have no box of four numbers': 'a bndbox with xmin, ymin, xmax, ymax',
}
BROKEN, OTHER, DOCTYPE, NAMELESS, BOX = MISTAKES


def image_sets(root: Path, images: Path) -> dict[str, list[Path]]:
    """The images of each split, as ImageSets/Main lists their names; {} where it has no train.

    Raises:
        UserError: a list is empty, or has an image that is not there.
    """
    lists = {split: root / 'ImageSets' / 'Main' / f'{split}.txt'
             for split in ('train', 'val', 'test')}
    if not lists['train'].is_file():
        lists['train'] = lists['train'].with_name('trainval.txt')
    if not lists['train'].is_file():
        return {}
    there = {name: path for path in images_in(images) for name in (path.stem, path.name)}
    splits = {}
    for split, file in lists.items():
        for number, line in read_lines(file) if file.is_file() else []:
            name = line if line in there else line.split()[0]  # some lists have 1 or -1 behind it
            if name not in there:
                raise UserError(f'{file}:{number}: there is no image {name} in {images}')
            splits.setdefault(split, []).append(there[name])
        if file.is_file() and split not in splits:
            raise UserError(f'{file} lists no images')
    return splits


class HasDoctype(Exception):
    """Entities may be defined to expand without end, or to read other files."""


def read_xml(path: Path) -> Element:
    """The root of an XML file; each element has the attribute 'line'.

    Raises:
        HasDoctype: the file may define entities.
        xml.parsers.expat.ExpatError: it is not XML.
    """
    def refuse(*_):
        raise HasDoctype

    builder, parser = TreeBuilder(), expat.ParserCreate()
    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler = lambda tag, attributes: builder.start(
        tag, {**attributes, 'line': str(parser.CurrentLineNumber)})
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    parser.Parse(path.read_bytes(), True)
    return builder.close()


def read(labels: Labels):
    """Read an annotation file; boxes are [xmin, ymin, xmax, ymax] until all files are read."""
    try:
        root = read_xml(labels.path)
    except HasDoctype:
        labels.wrong(DOCTYPE)
        return
    except expat.ExpatError as error:
        labels.wrong(BROKEN, error.lineno, expat.ErrorString(error.code))
        return
    if root.tag != 'annotation':
        labels.wrong(OTHER, '', f'its root is {root.tag}')
        return
    size = numbers_in(root.find('size'), ('width', 'height'))
    known = size and all(0 < part < math.inf for part in size)  # some tools write 0
    labels.size = tuple(map(int, size)) if known else None
    for node in root.findall('object'):
        line, name = node.get('line'), (node.findtext('name') or '').strip()
        corners = numbers_in(node.find('bndbox'), CORNERS)
        if not name:
            labels.wrong(NAMELESS, line)
        elif corners is None:
            labels.wrong(BOX, line)
        else:
            labels.objects.append(dict(
                name=name, bbox=corners, place=f'{labels.name}:{line}',
                iscrowd=int((node.findtext('difficult') or '').strip() == '1')))


def numbers_in(node: Element | None, names: tuple[str, ...]) -> list[float] | None:
    try:
        return [float(node.findtext(name)) for name in names]
    except (AttributeError, TypeError, ValueError):  # no node, no such element, no number
        return None


def finish(objects: list[dict]) -> list[str]:
    """Boxes as COCO has them, of all files of a data set.

    Returns:
        The lines to log.
    """
    notes, first = [], 1
    if any(0 in found['bbox'][:2] for found in objects):
        first = 0
        notes.append('Corners are at 0, so that pixels are taken to be counted from 0, not from 1 '
                     'as in Pascal VOC')
    for found in objects:
        xmin, ymin, xmax, ymax = found['bbox']
        x, y = xmin - first, ymin - first
        found['bbox'] = [x, y, xmax - x, ymax - y]
    difficult = sum(found['iscrowd'] for found in objects)
    if difficult:
        notes.append(f'{difficult:,} of {len(objects):,} objects are marked difficult: as crowds, '
                     'they are neither learned nor counted as missed')
    return notes
