"""COCO annotations of one's own, as export tools write them: understood, checked, put right.

What is put right here (no `iscrowd`, no `area`, file names with a prefix, ...) and what is an error
stands in docs/own_data.md. mmdet reads what comes out.
"""
import json
import math
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from pycocotools import mask as rle

from ..errors import UserError
from .files import without_collector
from .findings import Finding
from .headers import headers, shown_size

MOST = 0.5  # where more than this share is wrong, it is no slip but a mistake in all of it


def read_coco(path: Path, panoptic: bool = False) -> dict:
    """The content of an annotation file.

    Raises:
        UserError: it is not JSON, or not in COCO format.
    """
    try:
        with without_collector():
            content = json.loads(path.read_text(encoding='utf-8-sig'))
    except OSError as error:
        raise UserError(f'the annotation file {path} cannot be read: {error.strerror}') from None
    except ValueError as error:
        raise UserError(f'the annotation file {path} is not JSON, or not all of it ({error})'
                        ) from None
    lacking = [key for key in ('images', 'annotations', 'categories')
               if not isinstance(content, dict) or not isinstance(content.get(key), list)]
    if lacking:
        raise UserError(f'the annotation file {path} is not in COCO format: no list of '
                        f'{", ".join(lacking)}')
    needed = dict(images=('id', 'file_name'), categories=('id', 'name'),
                  annotations=('image_id', 'segments_info') if panoptic else
                  ('image_id', 'category_id', 'bbox'))
    for key, names in needed.items():
        wanted = set(names)
        for number, entry in enumerate(content[key]):
            if not isinstance(entry, dict) or not wanted <= entry.keys():
                missing = [name for name in names if not isinstance(entry, dict)
                           or name not in entry]
                raise UserError(f'the annotation file {path} is not in COCO format: entry {number} '
                                f'of {key} has no {", ".join(missing)}')
    for key in ('images', 'annotations'):
        if not content[key]:
            raise UserError(f'the annotation file {path} lists no {key}')
    return content


class CocoCheck:
    """Goes through a COCO annotation file, puts right what is clear, and says what it found.

    Args:
        content: from :func:`read_coco`; changed in place.
        path: of the file.
        folder: the images' folder.
        classes: names that another split has, in their order; () to take this file's.

    Attributes:
        findings: what was found, errors among them.
        notes: what was understood and put right, as lines to log.
        classes: names in the order of their numbers.
        with_mask, without_mask: the objects that have a mask, and those that have none.
        stored, turned: images with an EXIF rotation whose labels lie on them as they are stored,
            and as EXIF turns them.
    """

    def __init__(self, content: dict, path: Path, folder: Path, classes: Iterable[str] = ()):
        self.content, self.path, self.folder = content, path, folder
        self.findings, self.notes = [], []
        self.images = content['images']
        self.annotations = content['annotations']
        self.classes = tuple(classes)
        self.stored, self.turned = [], []
        self.with_mask, self.without_mask = [], []
        with without_collector():
            self.find_images()
            self.read_headers()
            self.check_ids()
            self.check_categories()
            self.check_boxes()
            self.check_masks()
            self.fill_in()
        content.update(images=self.images, annotations=self.annotations)

    def add(self, what: str, entries: list, remedy: str = '', error: bool = False, total: int = 0,
            show: str = 'id'):
        """A finding about images or annotations, if there are any."""
        if entries:
            names = {image['id']: image['file_name'] for image in self.images}
            seen = [(name, entry) for entry in entries
                    if (name := names.get(entry.get('image_id'), entry.get('file_name')))]
            self.findings.append(Finding(
                str(self.path), what,
                [entry.get('place') or f'{show} {entry.get(show)}' for entry in entries],
                total=total, remedy=remedy, error=error, images=[name for name, _ in seen],
                objects=[entry for _, entry in seen if 'bbox' in entry]))

    # -- images --------------------------------------------------------------------------------

    def find_images(self):
        """Find each image's file, by the last part of its name where a tool put a prefix before it.
        """
        there, start = set(), len(str(self.folder)) + 1
        for parent, _, names in os.walk(self.folder):
            below = f'{parent[start:]}/'.lstrip('/')
            there.update(below + name for name in names)
        by_last = None  # {last part: all names}
        renamed, missing = [], []
        for image in self.images:
            said = str(image['file_name'])
            if said in there or (self.folder / said).is_file():
                continue
            if by_last is None:
                by_last = {}
                for name in there:
                    by_last.setdefault(name.rpartition('/')[2], []).append(name)
            last = PurePosixPath(unquote(said).replace('\\', '/')).name
            found = by_last.get(last) or by_last.get(PurePosixPath(said).name) or ()
            if len(found) == 1:
                image['file_name'] = found[0]
                renamed.append(f'{said} as {found[0]}')
            else:
                missing.append(image)
        if renamed:
            self.notes.append(f'{self.path}: {len(renamed)} of {len(self.images)} images are found '
                              f'by the last part of their name ({renamed[0]})')
        self.add(f'images are not in {self.folder}', missing, 'copy them there, or say the right '
                 'folder', error=True, total=len(self.images), show='file_name')
        gone = {image['id'] for image in missing}
        self.images = [image for image in self.images if image['id'] not in gone]
        self.annotations = [a for a in self.annotations if a['image_id'] not in gone]
        first = {}
        for image in self.images:
            first.setdefault(image['id'], image)
        again = [image for image in self.images if image is not first[image['id']]]
        self.add('images have the id of another one', again, 'only the first of each is used',
                 error=len(again) > MOST * len(self.images), total=len(self.images))
        self.images = list(first.values())

    def read_headers(self):
        """Compare the sizes in the file with the images'; find which way EXIF's labels lie."""
        folder = str(self.folder)
        read = headers(os.path.join(folder, image['file_name']) for image in self.images)
        broken = [image for image, found in zip(self.images, read, strict=True)
                  if isinstance(found, str)]
        reasons = {found for found in read if isinstance(found, str)}
        self.add('images cannot be read', broken, f'get them again ({"; ".join(sorted(reasons))})',
                 error=True, total=len(self.images), show='file_name')
        wrong = []
        for image, found in zip(self.images, read, strict=True):
            if isinstance(found, str):
                continue
            size, shown = found[0], shown_size(found)
            if 'width' not in image or 'height' not in image:
                image['width'], image['height'] = shown
                continue
            said = int(float(image['width'])), int(float(image['height']))
            image['width'], image['height'] = said
            if said not in (size, shown):
                wrong.append({**image, 'place': f'{image["file_name"]} is {shown[0]} x '
                              f'{shown[1]}, not {said[0]} x {said[1]}'})
            elif size != shown:
                (self.stored if said == size else self.turned).append(image)
        self.add('images have another size than the file says', wrong, 'labels were drawn on other '
                 'images, or width and height are exchanged', error=True, total=len(self.images))
        if self.stored and self.turned:
            self.add('images have an EXIF rotation that their labels do not follow, while '
                     f'those of {len(self.turned)} others do', self.stored, 'store these images '
                     'turned, or turn their labels', error=True, show='file_name')
        elif self.stored:
            self.notes.append(f'{self.path}: {len(self.stored)} images have an EXIF rotation; by '
                              'their width and height the labels lie on the images as stored, so '
                              'that the rotation is not applied')

    # -- annotations ---------------------------------------------------------------------------

    def check_ids(self):
        known = {image['id'] for image in self.images}
        lost = [a for a in self.annotations if a['image_id'] not in known]
        self.add('annotations are of images that the file does not list', lost, 'they are not used',
                 error=len(lost) > MOST * len(self.annotations), total=len(self.annotations))
        self.annotations = [a for a in self.annotations if a['image_id'] in known]
        counts = Counter(a['id'] for a in self.annotations if 'id' in a)
        twice = {a['id']: a for a in self.annotations if 'id' in a and counts[a['id']] > 1}
        self.add('annotation ids are those of several annotations', list(twice.values()),
                 'give each annotation an id of its own', error=True)
        if all('id' not in a for a in self.annotations):
            for number, annotation in enumerate(self.annotations, 1):
                annotation['id'] = number
        self.add('annotations have no id', [a for a in self.annotations if 'id' not in a],
                 'give each annotation an id of its own', error=True, show='image_id')

    def check_categories(self):
        """Put the categories into one order for all splits; leave out Roboflow's group of all."""
        categories = self.content['categories']
        used = {a['category_id'] for a in self.annotations}
        groups = {category.get('supercategory') for category in categories}
        categories = [category for category in categories if category['id'] in used
                      or not (category['id'] == 0 and category['name'] in groups
                              and len(categories) > 1)]
        unknown = used - {category['id'] for category in categories}
        self.add('annotations are of categories that the file does not define',
                 [a for a in self.annotations if a['category_id'] in unknown],
                 f'ids {sorted(unknown, key=str)}', error=True, total=len(self.annotations))
        names = [str(category['name']) for category in categories]
        double = [name for name, count in Counter(names).items() if count > 1]
        if double:
            raise UserError(f'the annotation file {self.path} has several categories of the name '
                            f'{double[0]}: class names have to differ')
        if self.classes:
            strange = [name for name in names if name not in self.classes]
            if strange:
                raise UserError(f'the annotation file {self.path} has the categories '
                                f'{", ".join(strange)}, which the classes ('
                                f'{", ".join(self.classes)}) do not have')
            # mmdet numbers classes in the order of this list.
            order = {name: category for name, category in zip(names, categories, strict=True)}
            free = iter(number for number in range(1, 10**6)
                        if number not in {category['id'] for category in categories})
            categories = [order.get(name) or dict(id=next(free), name=name)
                          for name in self.classes]
        self.classes = self.classes or tuple(names)
        self.content['categories'] = categories

    def check_boxes(self):
        """Leave out boxes that are none; notice those in another format than COCO's."""
        sizes = {image['id']: (image['width'], image['height']) for image in self.images
                 if 'width' in image}
        text = [a for a in self.annotations if not is_box(a['bbox'])]
        self.add('boxes are not four numbers', text, 'a box is [x, y, width, height] in pixels',
                 error=True, total=len(self.annotations))
        strange = {id(a) for a in text}
        annotations = [a for a in self.annotations if id(a) not in strange]
        total = len(annotations)
        empty, outside, leaving, corners, small = [], [], [], [], []
        for annotation in annotations:
            x, y, w, h = annotation['bbox']
            width, height = sizes.get(annotation['image_id'], (math.inf, math.inf))
            if not all(map(math.isfinite, (x, y, w, h))) or w <= 0 or h <= 0:
                empty.append(annotation)
            elif w < 1 or h < 1:
                small.append(annotation)
            elif x >= width or y >= height or x + w <= 0 or y + h <= 0:
                outside.append(annotation)
            elif x + w > width + 1 or y + h > height + 1 or x < -1 or y < -1:
                leaving.append(annotation)
                if x < w <= width + 1 and y < h <= height + 1:
                    corners.append(annotation)
        dropped = 'they are not used'
        for what, found in (('boxes have no area, or numbers that are not finite', empty),
                            ('boxes are narrower than a pixel', small),
                            ('boxes lie outside their images', outside)):
            wrong = len(found) > MOST * total
            self.add(what, found, 'are they fractions of the image? COCO counts pixels'
                     if wrong and found is small else dropped, error=wrong, total=total)
        many = len(leaving) > MOST * total
        self.add('boxes leave their images', leaving,
                 'most would fit as [x1, y1, x2, y2], but COCO has [x, y, width, height]'
                 if many and len(corners) > MOST * len(leaving) else
                 'they are cut at the border', total=total)
        gone = {id(a) for a in (*text, *empty, *small, *outside)}
        self.annotations = [a for a in self.annotations if id(a) not in gone]

    def check_masks(self):
        """Which objects have masks; what is no mask is left out or named."""
        unusable, shortened, strange = [], [], []
        for annotation in self.annotations:
            mask = annotation.get('segmentation')
            if not mask:
                self.without_mask.append(annotation)
            elif isinstance(mask, dict) and {'size', 'counts'} <= mask.keys():
                self.with_mask.append(annotation)
            elif (polygons := polygons_in(mask)) is None:
                strange.append(annotation)
            else:
                good = [polygon for polygon in polygons
                        if len(polygon) >= 6 and len(polygon) % 2 == 0]
                (self.with_mask if good else unusable).append(annotation)
                if good and len(good) < len(polygons):
                    shortened.append(annotation)
                annotation['segmentation'] = good
        total = len(self.annotations)
        self.add('objects have a segmentation that is neither polygons nor run lengths', strange,
                 'COCO has a list of [x1, y1, x2, y2, ...], or size and counts', error=True,
                 total=total)
        if self.with_mask:
            self.add('objects have polygons of fewer than three points beside good ones', shortened,
                     'those polygons are left out', total=total)
            self.add('objects have no polygon of three points or more', unusable,
                     'draw them again, or take them out', error=True, total=total)
        else:
            self.without_mask += unusable
        for annotation in self.without_mask:
            annotation.pop('segmentation', None)

    def require_masks(self):
        """Some objects have masks and an experiment learns them: all need one."""
        self.add('objects have no mask, while others have one', self.without_mask,
                 'add masks or take these objects out; or train boxes alone, with an experiment '
                 'without masks', error=True, total=len(self.annotations))

    def fill_in(self):
        """What scoring needs and export tools leave out."""
        crowd = [a for a in self.annotations if 'iscrowd' not in a]
        for annotation in crowd:
            annotation['iscrowd'] = 0
        sizes = {image['id']: (image.get('height'), image.get('width')) for image in self.images}
        bare = [a for a in self.annotations if type(a.get('area')) not in (int, float)]
        for annotation in bare:
            annotation['area'] = area(annotation, sizes[annotation['image_id']])
        for what, found in ('iscrowd', crowd), ('area', bare):
            if found:
                self.notes.append(f'{self.path}: {len(found)} annotations have no {what}: '
                                  f'{"taken as 0" if what == "iscrowd" else "computed"}')


def polygons_in(mask) -> list | None:
    """The lists of numbers in a segmentation; one alone may stand there without a list around it.
    """
    if isinstance(mask, list) and are_numbers(mask):
        mask = [mask]
    good = isinstance(mask, list) and all(
        isinstance(polygon, list) and are_numbers(polygon) for polygon in mask)
    return mask if good else None


def are_numbers(values: list) -> bool:
    return set(map(type, values)) <= {int, float}  # several times as fast as one by one


def is_number(value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_box(box) -> bool:
    return isinstance(box, list) and len(box) == 4 and are_numbers(box)


def area(annotation: dict, size: tuple) -> float:
    """Pixels of an object's mask, or of its box."""
    mask = annotation.get('segmentation')
    if not mask or None in size:
        return annotation['bbox'][2] * annotation['bbox'][3]
    if isinstance(mask, list):
        mask = rle.merge(rle.frPyObjects(mask, *size))
    elif isinstance(mask['counts'], list):
        mask = rle.frPyObjects(mask, *size)
    return float(rle.area(mask))
