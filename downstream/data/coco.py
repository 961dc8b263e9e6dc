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

from ..errors import UserError, shown
from .files import walk, without_collector
from .findings import Finding
from .headers import headers, shown_size
from .labels import class_names

HUGE = 2**53  # pixels
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
    except RecursionError:
        raise UserError(f'the annotation file {path} is nested too deeply') from None
    except ValueError as error:
        raise UserError(f'the annotation file {path} is not JSON, or not all of it ({error})'
                        ) from None
    lacking = [key for key in ('images', 'annotations', 'categories')
               if not isinstance(content, dict) or not isinstance(content.get(key), list)]
    if lacking:
        raise UserError(f'the annotation file {path} is not in COCO format: no list of '
                        f'{", ".join(lacking)}')
    needed = NEEDED if not panoptic else {**NEEDED, 'annotations': {
        'image_id': as_id, 'segments_info': as_objects}}
    for key, parts in needed.items():
        check_entries(path, content[key], parts, f'of {key}')
    if panoptic:
        segments = [segment for a in content['annotations'] for segment in a['segments_info']]
        check_entries(path, segments, dict(category_id=as_id, id=as_id), 'of all segments_info')
    for key in ('images', 'annotations'):
        if not content[key]:
            raise UserError(f'the annotation file {path} lists no {key}')
    return content


def check_entries(path: Path, entries: list, parts: dict, where: str):
    """Entries of an annotation file have what they need, as what it has to be.

    Args:
        parts: {name: a function that gives the value as it is kept, or None for what is wrong;
            LATER: it has to be there}.

    Raises:
        UserError: one lacks a part, or has something else in its place.
    """
    wanted = set(parts)
    checked = {name: understand for name, understand in parts.items() if understand is not LATER}
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict) or not wanted <= entry.keys():
            missing = [name for name in parts if not isinstance(entry, dict) or name not in entry]
            hint = next((f'; it looks like a file {what}' for key, what in (
                ('segments_info', 'of panoptic maps, for a panoptic experiment'),
                ('bbox', 'of boxes or masks, for an experiment in detection'))
                if isinstance(entry, dict) and key in entry and key not in parts), '')
            raise UserError(f'the annotation file {path} is not in COCO format: entry {number} '
                            f'{where} has no {", ".join(missing)}{hint}')
        for name, understand in checked.items():
            value = understand(entry[name])
            if value is None:
                raise UserError(f'the annotation file {path} is not in COCO format: {name} of '
                                f'entry {number} {where} is {shown(entry[name])}')
            entry[name] = value


def as_id(value) -> int | str | None:
    """An id, which is a whole number or text."""
    if type(value) is int:
        return value if is_number(value) else None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, str) or type(value) is int and is_number(value) else None


def as_text(value) -> str | None:
    return value if isinstance(value, str) else None


def as_objects(value) -> list[dict] | None:
    good = isinstance(value, list) and all(isinstance(part, dict) for part in value)
    return value if good else None


LATER = None  # what is looked at later
NEEDED = dict(images=dict(id=as_id, file_name=as_text), categories=dict(id=as_id, name=LATER),
              annotations=dict(image_id=as_id, category_id=as_id, bbox=LATER))


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
            self.check_annotations()
            self.number_ids()
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
                [entry.get('place') or ' '.join(map(str, (key, entry.get(key))))
                 for entry in entries for key in [show if show in entry else 'image_id']],
                total=total, remedy=remedy, error=error, images=[name for name, _ in seen],
                objects=[entry for _, entry in seen]
                if all('bbox' in entry for _, entry in seen) else []))

    # -- images --------------------------------------------------------------------------------

    def find(self, entries: list[dict], folder: Path, what: str) -> list[dict]:
        """Find each entry's file, by the last part of its name where a tool put a prefix before it.

        Args:
            what: the files are, in words.

        Returns:
            The entries that have none; file_name of the others is right.
        """
        start = len(str(folder)) + 1
        there = {path[start:].replace(os.sep, '/') for path in walk(str(folder))}
        by_last = None  # {last part: all names}
        renamed, missing = [], []
        for entry in entries:
            said = entry['file_name']
            # (Path.is_file raises for a name that is too long)
            if said in there or os.path.isfile(folder / said):
                continue
            if by_last is None:
                by_last = {}
                for name in there:
                    by_last.setdefault(name.rpartition('/')[2], []).append(name)
            last = PurePosixPath(unquote(said).replace('\\', '/')).name
            found = by_last.get(last) or by_last.get(PurePosixPath(said).name) or ()
            if len(found) == 1:
                entry['file_name'] = found[0]
                renamed.append(f'{said} as {found[0]}')
            else:
                missing.append(entry)
        if renamed:
            self.notes.append(f'{self.path}: {len(renamed)} of {len(entries)} {what} are found '
                              f'by the last part of their name ({renamed[0]})')
        return missing

    def find_images(self):
        """Images without a file are named, and left out with what is said of them."""
        missing = self.find(self.images, self.folder, 'images')
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
        for image in self.images:
            written = [as_size(image.pop(side, None)) for side in ('width', 'height')]
            if None not in written:
                image.update(zip(('width', 'height'), written, strict=True))
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
            if 'width' not in image:
                image['width'], image['height'] = shown
                continue
            said = image['width'], image['height']
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

    def check_annotations(self):
        self.check_whose()
        self.check_ids()
        self.check_categories()
        self.check_boxes()
        self.check_masks()
        self.fill_in()

    def objects(self) -> list[dict]:
        """What has a category."""
        return self.annotations

    def check_whose(self):
        """Annotations of images that are not there."""
        known = {image['id'] for image in self.images}
        lost = [a for a in self.annotations if a['image_id'] not in known]
        self.add('annotations are of images that the file does not list', lost, 'they are not used',
                 error=len(lost) > MOST * len(self.annotations), total=len(self.annotations))
        self.annotations = [a for a in self.annotations if a['image_id'] in known]

    def check_ids(self):
        strange = []
        if set(map(type, (a.get('id') for a in self.annotations))) != {int}:
            for annotation in self.annotations:
                number = as_id(annotation.pop('id', None) if annotation.get('id') is None
                               else annotation['id'])
                if number is not None:
                    annotation['id'] = number
                elif 'id' in annotation:
                    strange.append(annotation)
        self.add('annotations have an id that is no whole number or text', strange,
                 'give each annotation an id of its own', error=True)
        known = [a for a in self.annotations if 'id' in a] if not strange else []
        counts = Counter(a['id'] for a in known)
        twice = {a['id']: a for a in known if counts[a['id']] > 1}
        self.add('annotation ids are those of several annotations', list(twice.values()),
                 'give each annotation an id of its own', error=True)
        if all('id' not in a for a in self.annotations):
            for number, annotation in enumerate(self.annotations, 1):
                annotation['id'] = number
        self.add('annotations have no id', [a for a in self.annotations if 'id' not in a],
                 'give each annotation an id of its own', error=True, show='image_id')

    def number_ids(self):
        """Give numbers to images and categories whose ids are others than scoring can take."""
        for entries, users, key in ((self.images, self.annotations, 'image_id'),
                                    (self.content['categories'], self.objects(), 'category_id')):
            if all(isinstance(entry['id'], int) and entry['id'] >= 0 for entry in entries):
                continue
            numbers = {entry['id']: number for number, entry in enumerate(entries, 1)}
            for entry in entries:
                entry['id'] = numbers[entry['id']]
            for user in users:
                user[key] = numbers.get(user[key])
            self.notes.append(f'{self.path}: the ids that {key} names are not numbers: numbered')

    def check_categories(self):
        """Put the categories into one order for all splits; leave out Roboflow's group of all."""
        categories = self.content['categories']
        used = {a['category_id'] for a in self.objects()}
        groups = [category.get('supercategory') for category in categories]
        kept = [category for category in categories if category['id'] in used
                or not (category['id'] == 0 and category['name'] in groups and len(categories) > 1)]
        if len(kept) < len(categories):
            self.notes.append(f'{self.path}: category 0 is the group of the others and has no '
                              'objects: left out')
        categories = kept
        unknown = used - {category['id'] for category in categories}
        self.add('annotations are of categories that the file does not define',
                 [a for a in self.objects() if a['category_id'] in unknown],
                 f'ids {shown(sorted(unknown, key=str))}', error=True, total=len(self.objects()))
        names = class_names(f'the annotation file {self.path}',
                            [category['name'] for category in categories])
        for category, name in zip(categories, names, strict=True):
            category['name'] = name  # a number would be the name of no class
        double = [number for number, count in
                  Counter(category['id'] for category in categories).items() if count > 1]
        if double:
            raise UserError(f'the annotation file {self.path} has several categories of the id '
                            f'{double[0]}: ids have to differ')
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
            # (Whole numbers may be larger than floats can be.)
            if not (-HUGE < x < HUGE and -HUGE < y < HUGE and 0 < w < HUGE and 0 < h < HUGE):
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
        unusable, shortened, strange, wild = [], [], [], []
        sizes = {image['id']: (image.get('height'), image.get('width')) for image in self.images}
        for annotation in self.annotations:
            mask, size = annotation.get('segmentation'), sizes[annotation['image_id']]
            if not mask:
                self.without_mask.append(annotation)
            elif isinstance(mask, dict) and {'size', 'counts'} <= mask.keys():
                (self.with_mask if None in size or fits(mask, size) else wild).append(annotation)
            elif (polygons := polygons_in(mask)) is None:
                strange.append(annotation)
            else:
                good = [polygon for polygon in polygons
                        if len(polygon) >= 6 and len(polygon) % 2 == 0]
                far = None not in size and any(map(is_far, good, [size] * len(good)))
                (wild if far else self.with_mask if good else unusable).append(annotation)
                if good and len(good) < len(polygons):
                    shortened.append(annotation)
                annotation['segmentation'] = good
        total = len(self.annotations)
        self.add('objects have a segmentation that is neither polygons nor run lengths', strange,
                 'COCO has a list of [x1, y1, x2, y2, ...], or size and counts', error=True,
                 total=total)
        self.add('objects have a mask that cannot lie in its image', wild, 'run lengths are of '
                 'another size or damaged, or polygons have points far outside', error=True,
                 total=total)
        for annotation in (*strange, *wild):
            annotation['segmentation'] = []  # drawing it might take for ever
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
        # COCO's evaluation takes an object with id 0 for missed, and text for no id at all.
        ids = [a.get('id') for a in self.annotations]
        if set(map(type, ids)) != {int} or min(ids) < 1:
            for number, annotation in enumerate(self.annotations, 1):
                annotation['id'] = number
        crowd = [a for a in self.annotations if a.get('iscrowd') is None]
        for annotation in crowd:
            annotation['iscrowd'] = 0
        self.add('annotations have an iscrowd that is neither 0 nor 1', [
            a for a in self.annotations if a['iscrowd'] not in (0, 1)], error=True)
        sizes = {image['id']: (image.get('height'), image.get('width')) for image in self.images}
        # mmdet leaves objects out whose area is 0.
        bare = [a for a in self.annotations if not (
            type(a.get('area')) in (int, float) and 0 < a['area'] < HUGE)]
        stopped = any(finding.error for finding in self.findings)  # of masks that are none, maybe
        for annotation in bare:
            shape = dict(bbox=annotation['bbox']) if stopped else annotation
            annotation['area'] = area(shape, sizes[annotation['image_id']])
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
    """A number, maybe not a finite one; Python's whole numbers may be larger than any other."""
    return isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool)
                                        and abs(value) < 2**63)


def as_size(value) -> int | None:
    """A width or height, of which some tools make text; None for what is none."""
    try:
        return int(float(value))
    except (TypeError, ValueError, OverflowError):
        return None


def is_far(polygon: list, size: tuple[int, int]) -> bool:
    """Whether a polygon leaves an image by more than the image's size, (height, width).

    Drawing one takes time and memory by its length.
    """
    def within(values: list, side: int) -> bool:
        return -side <= min(values) and max(values) <= 2 * side

    if not within(polygon, min(size)):
        height, width = size
        if not (within(polygon[::2], width) and within(polygon[1::2], height)):
            return True
    return math.isnan(sum(polygon))  # which comparisons pass over


def fits(mask: dict, size: tuple[int, int]) -> bool:
    """Whether run lengths are an image's, of (height, width); pycocotools reads what it gets."""
    counts = mask['counts']
    if not isinstance(mask['size'], list) or tuple(mask['size']) != size:
        return False
    if isinstance(counts, list):
        return all(is_number(count) and count >= 0 for count in counts) and (
            sum(counts) == size[0] * size[1])
    lengths = isinstance(counts, str) and run_lengths(counts)
    return bool(lengths) and min(lengths) >= 0 and sum(lengths) == size[0] * size[1]


def run_lengths(text: str) -> list[int]:
    """The numbers in a mask's compressed run lengths, [] where they are damaged.

    Five bits a character, low ones first, the sixth for more, the fifth of the last for the sign;
    from the fourth number on the difference to the one before the last. (rleFrString in maskApi.c
    of https://github.com/cocodataset/cocoapi)
    """
    numbers, value, shift = [], 0, 0
    for part in (ord(character) - 48 for character in text):
        if not 0 <= part < 64:
            return []
        value |= (part & 31) << shift
        shift += 5
        if not part & 32:
            value -= (part >> 4 & 1) << shift
            numbers.append(value + (numbers[-2] if len(numbers) > 2 else 0))
            value = shift = 0
    return [] if shift else numbers


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
