"""COCO's panoptic annotations of one's own: understood, checked against their maps, put right."""
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import numpy as np
from pycocotools import mask as rle

from ..errors import UserError, shown
from ..progress import in_threads
from .cache import Cache, Files
from .coco import HUGE, MOST, CocoCheck, as_text, is_box, is_number
from .label_maps import MOST_READ
from .panoptic import read_ids

GREY = 1 + 256 + 256**2  # a grey pixel's id, divided by its grey


class PanopticCheck(CocoCheck):
    """Goes through a panoptic annotation file and its maps, as CocoCheck through one of boxes.

    Args:
        content: from ``read_coco(path, panoptic=True)``; changed in place.
        path: of the file.
        folder: the images' folder.
        maps: the folder of the PNG maps, a pixel of which has the id R + 256 G + 256^2 B.
        before: the check of another split, whose classes these have to be; None to take the
            file's, things first.
        most: how many maps are decoded, spread over all of them; those whose segments lack an area
            or box are too. None for all of them.

    Attributes:
        things: the names of the classes that are things.
    """

    def __init__(self, content: dict, path: Path, folder: Path, maps: Path,
                 before: 'PanopticCheck | None' = None, most: int | None = MOST_READ):
        self.maps, self.before, self.most = maps, before, most
        super().__init__(content, path, folder, before.classes if before else ())

    def check_annotations(self):
        self.check_whose()
        self.check_pairs()
        for annotation in self.annotations:
            for segment in annotation['segments_info']:
                segment['image_id'] = annotation['image_id']  # as mmdet has it
        self.check_categories()
        self.find_maps()
        self.check_segments()
        self.check_maps()

    def objects(self) -> list[dict]:
        return [segment for a in self.annotations for segment in a['segments_info']]

    def check_pairs(self):
        """An image has one annotation."""
        counts = Counter(a['image_id'] for a in self.annotations)
        bare = [image for image in self.images if image['id'] not in counts]
        self.add('images have no annotation', bare, 'they are not used', total=len(self.images),
                 error=len(bare) > MOST * len(self.images), show='file_name')
        self.images = [image for image in self.images if image['id'] in counts]
        self.add('images have several annotations', [
            image for image in self.images if counts[image['id']] > 1], 'a panoptic annotation '
            'holds all segments of its image', error=True, show='file_name')

    def check_categories(self):
        """Things come first among the classes: panoptic heads number them so."""
        categories = self.content['categories']
        silent = [category for category in categories if category.get('isthing') not in (0, 1)]
        if silent:
            raise UserError(f'the annotation file {self.path}: {len(silent)} of {len(categories)} '
                            'categories do not say whether they are things (isthing: 0 or 1): '
                            + ', '.join(shown(category['name']) for category in silent[:5]))
        self.content['categories'] = sorted(categories, key=lambda c: not c['isthing'])
        super().check_categories()
        known = self.before.things if self.before else ()
        for category in self.content['categories']:
            thing = category.setdefault('isthing', int(category['name'] in known))  # not in here
            if self.before and thing != (category['name'] in known):
                raise UserError(f'the annotation file {self.path}: {category["name"]} is '
                                f'{"a" if thing else "no"} thing here, and not so in another split')
        self.things = tuple(category['name'] for category in self.content['categories']
                            if category['isthing'])
        if not self.things:
            raise UserError(f'the annotation file {self.path}: no category is a thing; for stuff '
                            'alone take label maps and an experiment in segmentation')

    # -- maps ----------------------------------------------------------------------------------

    def find_maps(self):
        """Each annotation's map, which is called as the image where nothing is said."""
        names = {image['id']: image['file_name'] for image in self.images}
        unnamed = [a for a in self.annotations if not as_text(a.get('file_name'))]
        for annotation in unnamed:
            name = PurePosixPath(names[annotation['image_id']]).with_suffix('.png')
            annotation['file_name'] = name.as_posix()
        if unnamed:
            self.notes.append(f'{self.path}: {len(unnamed)} annotations have no file_name: their '
                              'maps are called as their images')
        missing = self.find(self.annotations, self.maps, 'maps')
        self.add(f'panoptic maps are not in {self.maps}', missing, 'copy them there, or say the '
                 'right folder', error=True, total=len(self.annotations), show='file_name')
        gone = {id(annotation) for annotation in missing}
        self.annotations = [a for a in self.annotations if id(a) not in gone]
        maps = {a['image_id']: a['file_name'] for a in self.annotations}
        for image in self.images:
            image['map'] = maps.get(image['id'])

    def check_segments(self):
        """What can be seen without the maps."""
        strange, twice, crowd = [], [], []
        for annotation in self.annotations:
            segments = annotation['segments_info']
            counts = Counter(segment['id'] for segment in segments)
            for segment in segments:
                segment['place'] = f'{annotation["file_name"]}: {segment["id"]}'
                if not isinstance(segment['id'], int) or not 0 < segment['id'] < 256**3:
                    strange.append(segment)
                elif counts[segment['id']] > 1:
                    twice.append(segment)
                if segment.get('iscrowd') is None:
                    segment['iscrowd'] = 0
                    crowd.append(segment)
        total = len(self.objects())
        self.add('segments have an id that no pixel can have', strange, 'R + 256 G + 256^2 B is '
                 'from 1 to 16777215; 0 is unlabelled', error=True, total=total)
        self.add('segments have the id of another one of their map', twice, 'give each segment of '
                 'a map an id of its own', error=True, total=total)
        self.add('segments have an iscrowd that is neither 0 nor 1', [
            segment for segment in self.objects() if segment['iscrowd'] not in (0, 1)], error=True)
        if crowd:
            self.notes.append(f'{self.path}: {len(crowd)} segments have no iscrowd: taken as 0')

    def check_maps(self):
        """Compare the ids in the maps with those in the file; find areas and boxes."""
        bare = {id(a) for a in self.annotations if not all(map(is_measured, a['segments_info']))}
        files = [(str(self.maps / a['file_name']), ) for a in self.annotations]
        known = None not in Cache('panoptic_maps', files).known()
        spread = 1 if known or not self.most else max(1, -(-len(files) // self.most))
        wanted = [i for i, a in enumerate(self.annotations) if i % spread == 0 or id(a) in bare]
        chosen = [self.annotations[i] for i in wanted]
        read = Cache('panoptic_maps', [files[i] for i in wanted]).read(decode)
        sizes = {image['id']: (image.get('width'), image.get('height')) for image in self.images}
        broken, absent, surplus, measured, guesses = {}, [], [], 0, Counter()
        for annotation, found in zip(chosen, read, strict=True):
            size = sizes[annotation['image_id']]
            if not isinstance(found, str) and None not in size and size != tuple(found[0]):
                found = 'panoptic maps have another size than their images'
            if isinstance(found, str):
                broken.setdefault(found, []).append(annotation)
                continue
            found = {number: dict(area=area, bbox=box) for number, area, box in found[1]}
            said = {segment['id'] for segment in annotation['segments_info']}
            absent += [segment for segment in annotation['segments_info']
                       if segment['id'] not in found]
            if strange := sorted(found.keys() - said):
                more = ', …' if len(strange) > 3 else ''
                surplus.append({**annotation, 'place': f'{annotation["file_name"]}: '
                                + ', '.join(map(str, strange[:3])) + more})
                guesses[guess(set(found), said)] += 1
            for segment in annotation['segments_info']:
                if segment['id'] in found and not is_measured(segment):
                    segment.update(found[segment['id']])
                    measured += 1
            annotation['segments_info'] = [segment for segment in annotation['segments_info']
                                           if segment['id'] in found]
        total, seen = len(chosen), sum(len(a['segments_info']) for a in chosen) + len(absent)
        for what, annotations in broken.items():
            self.add(what, annotations, error=True, total=total, show='file_name')
        most = len(surplus) > MOST * total
        (why, _), = guesses.most_common(1) or [('', 0)]
        self.add('panoptic maps have ids that their segments_info lacks', surplus,
                 why if most and why else 'these pixels are taken as unlabelled', error=most,
                 total=total)
        self.add('segments are not in their map', absent, 'they are not used', total=seen,
                 error=len(absent) > MOST * seen)
        self.add('panoptic maps have no segment', [a for a in self.annotations
                                                   if not a['segments_info']],
                 'nothing is learned from them', total=len(self.annotations), show='file_name')
        if measured:
            self.notes.append(f'{self.path}: {measured} segments have no area or box: computed')
        for segment in self.objects():
            segment.pop('place', None)

    def instances(self) -> dict:
        """The things in COCO's format of instances, with masks out of the maps.

        Raises:
            UserError: a map cannot be read.
        """
        things = [category for category in self.content['categories'] if category['isthing']]
        kinds = {category['id'] for category in things}

        def masks_of(annotation: dict) -> list[dict]:
            own = [segment for segment in annotation['segments_info']
                   if segment['category_id'] in kinds]
            path = self.maps / annotation['file_name']
            try:
                ids = read_ids(path.read_bytes()) if own else None
            except OSError as error:
                raise UserError(f'panoptic map {path} cannot be loaded: {error}') from None
            masks = [rle.encode(np.asfortranarray(ids == segment['id'], np.uint8))
                     for segment in own]
            return [dict(segment, segmentation=dict(mask, counts=mask['counts'].decode('ascii')))
                    for segment, mask in zip(own, masks, strict=True) if rle.area(mask)]

        objects = [thing for part in in_threads(masks_of, self.annotations, 'reading things',
                                                'maps') for thing in part]
        return dict(images=self.images, categories=things, annotations=[
            dict(thing, id=number) for number, thing in enumerate(objects, 1)])


def is_measured(segment: dict) -> bool:
    """Whether a segment has an area and a box that mmdet takes; others it leaves out."""
    area, box = segment.get('area'), segment.get('bbox')
    return (is_number(area) and 0 < area < HUGE and is_box(box)
            and all(-HUGE < value < HUGE for value in box) and box[2] >= 1 and box[3] >= 1)


def decode(entries: list[Files]) -> Iterator[list | str]:
    """:func:`segments_in` of each."""
    return in_threads(segments_in, entries, 'reading panoptic maps', 'maps')


def segments_in(files: Files) -> list | str:
    """The size of a map and its segments, but not 0; or in words why there are none.

    Returns:
        [[width, height], [[id, area, [x, y, width, height]], ...]], in pixels.
    """
    try:
        ids = read_ids(Path(files[0]).read_bytes())
    except OSError:
        return 'panoptic maps cannot be read'
    return [list(ids.shape[::-1]), measure(ids)]


def measure(ids: np.ndarray) -> list[list]:
    """[id, area, bbox] of the segments in a map, (H, W)."""
    # Runs of one id in a row: there are few of them, so that sorting them is fast.
    begins = np.ones(ids.shape, bool)
    begins[:, 1:] = ids[:, 1:] != ids[:, :-1]
    starts = np.flatnonzero(begins)
    lengths = np.diff(starts, append=ids.size)
    numbers, where = np.unique(ids.ravel()[starts], return_inverse=True)
    areas = np.bincount(where, lengths)
    rows, columns = np.divmod(starts, ids.shape[1])
    low, high = np.full((2, len(numbers)), ids.size), np.zeros((2, len(numbers)), int)
    for axis, first, last in ((0, columns, columns + lengths), (1, rows, rows + 1)):
        np.minimum.at(low[axis], where, first)
        np.maximum.at(high[axis], where, last)
    boxes = np.concatenate([low, high - low]).T  # (segments, 4)
    return [[number, int(area), box] for number, area, box in
            zip(numbers.tolist(), areas, boxes.tolist(), strict=True) if number]


def guess(found: set[int], said: set[int]) -> str:
    """Why none of the ids in a map might be those in the file."""
    if said and said <= {number >> 16 | number & 0xff00 | (number & 255) << 16 for number in found}:
        return 'the maps seem to be written blue first: a pixel is R + 256 G + 256^2 B'
    if said and all(number % GREY == 0 for number in found) and said <= {
            number // GREY for number in found}:
        return 'the maps are grey: a pixel is R + 256 G + 256^2 B, so that id 5 is (5, 0, 0)'
    return ''
