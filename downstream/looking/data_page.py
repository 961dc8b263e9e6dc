"""A page about a data set: what it holds, how its labels look, and what is wrong with it.

docs/own_data.md
"""
import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
from PIL import Image, ImageOps
from pycocotools import mask as rle

from ..data.coco import CocoCheck, is_box, is_number, polygons_in
from ..data.findings import Finding
from ..data.label_maps import MapsCheck
from ..data.own import Examined, palette
from ..data.panoptic import read_ids
from ..data.segments import PanopticCheck
from .charts import bar_chart, histogram
from .drawing import draw_labels, draw_objects, instance_colors, point_out
from .pages import data_uri, save_page, template

# COCO's: by the area of an object in pixels, for the scores AP_small, AP_medium, AP_large.
SMALL, LARGE = 32**2, 96**2
SIZES = {'small': 1, 'medium': SMALL**0.5, 'large': LARGE**0.5}
LONGEST = 640  # pixels of a picture's longer side
CHARTED = 30  # classes in a chart; the table has all
POINTED_OUT = 30  # objects that are pointed out in a picture


def small(path: Path, turn: bool = True) -> tuple[np.ndarray, float]:
    """An image at the size of a page's pictures, (H, W, 3) RGB, and its scale, 1 or less.

    Args:
        turn: as EXIF says; or as it is stored.
    """
    with Image.open(path) as image:
        longest = max(image.size)
        image.draft('RGB', (2 * LONGEST, 2 * LONGEST))  # JPEG: decode fewer pixels
        image = ImageOps.exif_transpose(image) if turn else image
        image = image.convert('RGB')
        image.thumbnail((LONGEST, LONGEST))
        return np.asarray(image), max(image.size) / longest


class Objects:
    """Boxes and masks of a split.

    Attributes:
        what: they are, in words.
        columns: what the numbers in ``classes`` are.
        classes: {name: numbers}.
        sizes: (width, height) of each image.
        areas: of each object, in pixels.
        summary: in words, how much there is.
    """
    what = 'objects'
    columns = 'objects', 'images'

    def __init__(self, check: CocoCheck):
        self.check = check
        self.of_image = defaultdict(list)
        for annotation in check.objects():
            self.of_image[annotation['image_id']].append(annotation)
        names = {category['id']: str(category['name']) for category in check.content['categories']}
        self.names = list(dict.fromkeys(names.values()))
        self.numbers = {key: self.names.index(name) for key, name in names.items()}
        objects = Counter(a['category_id'] for a in check.objects())
        images = Counter(number for group in self.of_image.values()
                         for number in {a['category_id'] for a in group})
        self.classes = {name: (objects[key], images[key]) for key, name in names.items()}
        self.sizes = [(image['width'], image['height']) for image in check.images
                      if 'width' in image]
        self.areas = [a['area'] for a in check.objects()
                      if is_number(a.get('area')) and a['area'] > 0]
        empty = len(check.images) - len(self.of_image)
        self.summary = (f'{len(check.images):,} images, {len(check.objects()):,} {self.what}'
                        + (f', {len(check.with_mask):,} of them with a mask'
                           if self.what == 'objects' else '')
                        + (f'; {empty:,} images show none' if empty else ''))
        self.turn = not check.stored or bool(check.turned)

    def samples(self, count: int) -> Iterator[tuple[str, np.ndarray]]:
        for image in chosen(self.check.images, count):
            yield image['file_name'], lambda image=image: self.draw(image)

    def draw(self, image: dict) -> np.ndarray:
        picture, scale = small(self.check.folder / image['file_name'], self.turn)
        annotations = [a for a in self.of_image[image['id']]
                       if a['category_id'] in self.numbers and is_box(a.get('bbox'))]
        labels = np.array([self.numbers[a['category_id']] for a in annotations], int)
        masks = self.masks(image, annotations, picture.shape[:2], scale)
        return draw_objects(
            picture, corners(annotations, scale), np.stack(masks) if any(
                mask.any() for mask in masks) else None,
            instance_colors(labels, palette(len(self.names))), [self.names[i] for i in labels])

    def masks(self, image: dict, annotations: list[dict], shape: tuple[int, int], scale: float
              ) -> list[np.ndarray]:
        """Of each annotation, (H, W) bool of the picture's shape."""
        return [mask_of(annotation, shape, scale) for annotation in annotations]

    def examples(self, finding: Finding, count: int) -> Iterator[tuple[str, np.ndarray]]:
        """Images that a finding is about, its objects pointed out."""
        if finding.where != str(self.check.path):
            return
        wrong = defaultdict(list)
        for name, entry in zip(finding.images, finding.objects or [None] * len(finding.images),
                               strict=True):
            wrong[name] += [entry] if entry else []
        images = {image['file_name']: image for image in self.check.images}
        for name in chosen(list(wrong), count):
            marked = wrong[name]
            gone = {id(entry) for entry in marked}
            beside = [a for a in self.of_image.get((images.get(name) or {}).get('id'), ())
                      if id(a) not in gone and is_box(a.get('bbox'))]
            words = ', '.join(called(entry) for entry in marked[:3])
            yield (f'{name}: {words}' + (', …' if len(marked) > 3 else '') if words else name,
                   lambda name=name, marked=marked, beside=beside: self.point_out(
                       name, marked, beside))

    def point_out(self, name: str, marked: list[dict], beside: list[dict]) -> np.ndarray:
        picture, scale = small(self.check.folder / name, self.turn)
        marked = [a for a in marked[:POINTED_OUT] if is_box(a['bbox'])
                  and all(map(math.isfinite, a['bbox']))]
        return point_out(picture, corners(marked, scale), [called(a) for a in marked],
                         corners(beside, scale))


class Segments(Objects):
    """Segments of panoptic maps."""
    what = 'segments'
    columns = 'segments', 'images'

    def masks(self, image, annotations, shape, scale):
        ids = read_ids((self.check.maps / image['map']).read_bytes())
        ids = cv2.resize(ids, shape[::-1], interpolation=cv2.INTER_NEAREST_EXACT)
        return [ids == annotation['id'] for annotation in annotations]


class Maps:
    """Label maps of a split; attributes as :class:`Objects`."""
    columns = 'images', '% of the pixels'

    def __init__(self, check: MapsCheck, names: tuple[str, ...]):
        self.check, self.names = check, names
        good = [found for found in check.read if not isinstance(found, str)]
        self.sizes = [size for size, _ in good]
        self.areas = []
        images, pixels = Counter(), Counter()
        for _, counts in good:
            here = Counter()
            for value, number in counts.items():
                here[check.values.get(value, 255)] += number
            pixels.update(here)
            images.update(here.keys())
        total = max(pixels.total(), 1)
        self.classes = {name: (images[i], 100 * pixels[i] / total) for i, name in enumerate(names)}
        self.summary = f'{len(check.listed):,} images' + (
            '' if len(check.pairs) == len(check.listed) else
            f', of which {len(check.pairs):,}, spread over all, were decoded') + (
            f'; {100 * pixels[255] / total:.1f} % of the pixels are not labelled')

    def samples(self, count: int) -> Iterator[tuple[str, np.ndarray]]:
        good = [pair for pair, found in zip(self.check.pairs, self.check.read, strict=True)
                if not isinstance(found, str)]
        return self.pictures(chosen(good, count))

    def examples(self, finding: Finding, count: int) -> Iterator[tuple[str, np.ndarray]]:
        if finding.where != self.check.dataset.data_prefix['seg_map_path']:
            return iter(())
        wanted = set(finding.images)
        return self.pictures(chosen([pair for pair in self.check.pairs
                                     if pair['img_path'] in wanted], count))

    def pictures(self, pairs: list[dict]) -> Iterator[tuple[str, np.ndarray]]:
        for pair in pairs:
            yield Path(pair['img_path']).name, lambda pair=pair: self.draw(pair)

    def draw(self, pair: dict) -> np.ndarray:
        """What is not labelled is grey; values without a meaning are white."""
        picture, _ = small(Path(pair['img_path']))
        with Image.open(pair['seg_map_path']) as labels:
            values = np.asarray(labels)
        if values.ndim != 2:
            return picture
        values = cv2.resize(values.astype(np.int32), picture.shape[1::-1],
                            interpolation=cv2.INTER_NEAREST_EXACT)
        nothing, strange = len(self.names), len(self.names) + 1
        table = {value: nothing if number == 255 else number
                 for value, number in self.check.values.items()}
        found, where = np.unique(values, return_inverse=True)
        labels = np.array([table.get(value, strange) for value in found.tolist()])[
            where.reshape(values.shape)]
        return draw_labels(
            picture, labels, [*self.names, 'not labelled', 'without a meaning'],
            [*palette(len(self.names)), (120, 120, 120), (255, 255, 255)])


def chosen(entries: list, count: int) -> list:
    """So many of them, at random, and always the same."""
    return random.Random(0).sample(entries, min(count, len(entries)))


def called(annotation: dict) -> str:
    """How messages call an annotation, short."""
    return str(annotation.get('place') or f'id {annotation.get("id")}').rpartition('/')[2]


def corners(annotations: list[dict], scale: float) -> np.ndarray:
    """(N, 4) x1, y1, x2, y2 of annotations' boxes."""
    boxes = np.array([a['bbox'] for a in annotations], float).reshape(-1, 4) * scale
    boxes[:, 2:] += boxes[:, :2]
    return boxes


def mask_of(annotation: dict, shape: tuple[int, int], scale: float) -> np.ndarray:
    """The mask of an annotation on a smaller picture, (H, W) bool; empty where it has none."""
    mask = np.zeros(shape, np.uint8)
    said = annotation.get('segmentation')
    if isinstance(said, dict):
        runs = said if isinstance(said['counts'], str | bytes) else rle.frPyObjects(
            said, *said['size'])
        mask = cv2.resize(rle.decode(runs), shape[::-1], interpolation=cv2.INTER_NEAREST_EXACT)
    elif said:
        cv2.fillPoly(mask, [(np.array(polygon, float).reshape(-1, 2) * scale).round().astype(int)
                            for polygon in polygons_in(said)], 1)
    return mask.astype(bool)


def drawn(pictures: Iterator[tuple]) -> list[tuple[str, str]]:
    """(words, picture for the page) of what can be drawn: files may be missing or broken."""
    found = []
    for words, draw in pictures:
        try:
            found.append((words, data_uri(draw(), 2 * LONGEST)))
        except Exception as error:  # what damaged bytes make Pillow do is anybody's guess
            found.append((f'{words}: cannot be drawn ({type(error).__name__})', ''))
    return found


def class_charts(splits: dict, kind: str) -> list:
    """How often each class occurs: of many classes the most frequent and the rarest ones."""
    column = next(iter(splits.values())).columns[kind == 'segmentation']
    index = kind == 'segmentation'
    rows = {name: [split.classes.get(name, (0, 0))[index] for split in splits.values()]
            for split in splits.values() for name in split.classes}
    names = sorted(rows, key=lambda name: -rows[name][0])
    title = f'Classes, {column}'
    if len(names) > CHARTED:
        names = names[:CHARTED * 2 // 3] + names[-(CHARTED // 3):]
        title += f': the {CHARTED * 2 // 3} most frequent and the {CHARTED // 3} rarest'
    # A chart for each split: a training set is many times a validation set.
    return [bar_chart(f'{split}: {title}' if len(splits) > 1 else title, names,
                      {split: [rows[name][i] for name in names]}, column)
            for i, split in enumerate(splits)]


def size_charts(splits: dict) -> list:
    charts = []
    for title, pick in ('Widths of the images', 0), ('Heights of the images', 1):
        values = {name: [size[pick] for size in split.sizes] for name, split in splits.items()
                  if split.sizes}
        if values:
            charts.append(histogram(title, values, 'pixels'))
    values = {name: np.sqrt(split.areas) for name, split in splits.items() if split.areas}
    if values:
        charts.append(histogram("Objects' sizes, as COCO's scores name them", values,
                                'square root of the area, pixels', SIZES))
    return charts


def size_rows(splits: dict) -> dict[str, list[float]]:
    """{split: percent of its objects that are small, medium, large}."""
    rows = {}
    for name, split in splits.items():
        if split.areas:
            areas = np.array(split.areas)
            shares = [areas < SMALL, (areas >= SMALL) & (areas < LARGE), areas >= LARGE]
            rows[name] = [100 * share.mean() for share in shares]
    return rows


def write_page(examined: Examined, out: Path, images: int) -> Path:
    """Write the page of a data set.

    Args:
        images: so many samples of each split, and so many examples of each finding.

    Returns:
        The page, index.html in ``out``.

    Raises:
        UserError: ``out`` cannot be written.
    """
    kind = examined.layout.kind
    splits = {name: Segments(check) if isinstance(check, PanopticCheck) else
              Objects(check) if isinstance(check, CocoCheck) else
              Maps(check, examined.layout.classes) for name, check in examined.checks.items()}
    topics = []
    for finding in sorted(examined.findings, key=lambda finding: not finding.error):
        found = [entry for split in splits.values()
                 for entry in split.examples(finding, images)][:images]
        if not found:  # label files that were not understood: the images alone
            found = [(Path(name).name, lambda name=name: small(Path(name))[0])
                     for name in chosen(list(dict.fromkeys(finding.images)), images)
                     if Path(name).is_file()]
        topics.append(('error' if finding.error else 'warning', finding, drawn(found)))
    turned = {name: drawn((image['file_name'], lambda image=image, split=split: split.draw(image))
                          for image in chosen(split.check.stored + split.check.turned, images))
              for name, split in splits.items() if isinstance(split, Objects)}
    text = template('data.html.j2').render(
        name=examined.layout.source.name or str(examined.layout.source), kind=kind,
        lines=[line for line in examined.lines if not line.startswith('  ')],
        splits=splits, topics=topics,
        class_charts=class_charts(splits, kind) if splits else [],
        size_charts=size_charts(splits), sizes=size_rows(splits),
        turned={name: pictures for name, pictures in turned.items() if pictures},
        samples={name: drawn(split.samples(images)) for name, split in splits.items()})
    return save_page(text, out, '--report')
