"""LabelMe's annotations: a JSON file an image, with shapes in pixels.

Polygons, circles and painted masks are masks; rectangles are boxes, or masks too where other
objects of the data set have one. Shapes of one label and group_id are one object in parts. Points
and lines have no area and are left out.
Source: labelme/utils/shape.py and examples/instance_segmentation/labelme2coco.py of
https://github.com/wkentaro/labelme
"""
import base64
import io
import json
import math

import numpy as np
from PIL import Image
from pycocotools import mask as rle

from .coco import is_far, is_number
from .labels import Labels, box_around, flat

MISTAKES = {
    'files are not JSON, or not all of it': '',
    "files are JSON, but not LabelMe's": 'a list of shapes',
    'shapes have no label': '',
    'shapes have points that are not two numbers': '',
    'shapes have too few points, or too many': 'a polygon has three or more, a rectangle and a '
                                               'circle have two',
    'shapes are of an unknown type': '',
    'shapes are masks that cannot be read': '',
}
LEFT_OUT = 'shapes are points or lines'
BROKEN, OTHER, NAMELESS, POINTS, COUNT, UNKNOWN, MASK = MISTAKES
WITHOUT_AREA = 'point', 'points', 'line', 'linestrip'


def read(labels: Labels, size: tuple[int, int]):
    """Read an annotation file.

    Args:
        labels: gets the objects and what is wrong.
        size: (width, height) of the image in pixels, as it is shown.
    """
    try:
        said = json.loads(labels.path.read_text(encoding='utf-8-sig'))
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError too
        labels.wrong(BROKEN, getattr(error, 'lineno', ''), getattr(error, 'msg', ''))
        return
    if not isinstance(said, dict) or not isinstance(said.get('shapes'), list):
        labels.wrong(OTHER)
        return
    written = said.get('imageWidth'), said.get('imageHeight')
    if all(isinstance(part, int) and part > 0 for part in written):
        labels.size = written
        if written == size[::-1]:
            size = written  # as stored, not as EXIF turns it; another size is named later
    groups = {}
    for number, shape in enumerate(said['shapes'], 1):
        shape = shape if isinstance(shape, dict) else {}
        found = read_shape(labels, shape, f'shape {number}', size)
        if found is None:
            continue
        group = shape.get('group_id')
        single = not isinstance(group, str | int) or 'segmentation' not in found
        if single or any(is_far(part, size[::-1]) for part in polygons_of(found)):
            labels.objects.append(found)
        elif (first := groups.get((found['name'], group))) is None:
            groups[found['name'], group] = found
            labels.objects.append(found)
        else:
            unite(first, found, size)


def read_shape(labels: Labels, shape: dict, where: str, size: tuple[int, int]) -> dict | None:
    """The object that a shape is, or None: something is wrong with it, or it has no area."""
    name, kind = shape.get('label'), shape.get('shape_type') or 'polygon'
    points = shape.get('points')
    if not isinstance(name, str) or not name.strip():
        labels.wrong(NAMELESS, where)
    elif not isinstance(points, list) or not all(
            isinstance(point, list) and len(point) == 2 and all(map(is_number, point))
            and all(map(math.isfinite, point)) for point in points):
        labels.wrong(POINTS, where)
    elif kind in WITHOUT_AREA:
        labels.wrong(LEFT_OUT, where)
    elif kind not in ('polygon', 'rectangle', 'circle', 'mask'):
        labels.wrong(UNKNOWN, where, kind)
    elif len(points) < 3 if kind == 'polygon' else len(points) != 2:
        labels.wrong(COUNT, where, f'{kind} of {len(points)}')
    elif kind == 'mask' and (mask := painted(shape.get('mask'), points, size)) is None:
        labels.wrong(MASK, where)
    else:
        found = dict(name=name.strip(), place=f'{labels.name}:{where}', bbox=box_around(points))
        if kind == 'polygon':
            found['segmentation'] = [flat(points)]
        elif kind == 'circle':
            found.update(circle(*points))
        elif kind == 'mask':
            found.update(segmentation=mask, bbox=rle.toBbox(mask).tolist())
        else:
            found['rectangle'] = True
        return found


def circle(center: list[float], edge: list[float]) -> dict:
    """A circle's box, and a polygon that leaves it by less than a pixel, as LabelMe draws it."""
    (x, y), radius = center, min(math.dist(center, edge), 1e6)
    count = max(12, math.ceil(math.pi / math.acos(max(0., 1 - 1 / radius)))) if radius else 12
    angles = [2 * math.pi * i / count for i in range(count)]
    return dict(bbox=[x - radius, y - radius, 2 * radius, 2 * radius],
                segmentation=[flat([(x + radius * math.cos(angle), y + radius * math.sin(angle))
                                    for angle in angles])])


def painted(text, points: list[list[float]], size: tuple[int, int]) -> dict | None:
    """The run lengths of a mask that is a picture in base64, its corner at the first point."""
    try:
        with Image.open(io.BytesIO(base64.b64decode(text, validate=True))) as image:
            part = np.asarray(image.convert('L')) > 0
    except Exception:  # what damaged bytes make Pillow do is anybody's guess
        return None
    x, y = (round(value) for value in points[0])
    if not (0 <= x < size[0] and 0 <= y < size[1]):
        return None
    whole = np.zeros(size[::-1], np.uint8, order='F')
    target = whole[y:y + part.shape[0], x:x + part.shape[1]]
    target[:] = part[:target.shape[0], :target.shape[1]]
    runs = rle.encode(whole)
    return dict(runs, counts=runs['counts'].decode('ascii'))


def polygons_of(found: dict) -> list[list[float]]:
    return found['segmentation'] if isinstance(found['segmentation'], list) else []


def unite(first: dict, more: dict, size: tuple[int, int]):
    """Add an object's other part."""
    parts = [first['segmentation'], more['segmentation']]
    if all(isinstance(part, list) for part in parts):
        first['segmentation'] = parts[0] + parts[1]
    else:
        runs = rle.merge([rle.merge(rle.frPyObjects(part, *size[::-1])) if isinstance(part, list)
                          else part for part in parts])
        first['segmentation'] = dict(runs, counts=runs['counts'].decode('ascii'))
    (x, y, w, h), (a, b, c, d) = first['bbox'], more['bbox']
    first['bbox'] = box_around([(x, y), (x + w, y + h), (a, b), (a + c, b + d)])


def finish(objects: list[dict]) -> list[str]:
    """Rectangles as masks where other objects of the data set have one.

    Returns:
        The lines to log.
    """
    masks = any('segmentation' in found for found in objects)
    rectangles = [found for found in objects if found.pop('rectangle', False)]
    if not masks or not rectangles:
        return []
    for found in rectangles:
        x, y, w, h = found['bbox']
        found['segmentation'] = [[x, y, x + w, y, x + w, y + h, x, y + h]]
    return [f'{len(rectangles):,} of {len(objects):,} objects are rectangles, taken as masks since '
            'others have masks']
