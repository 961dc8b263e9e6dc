"""Images with label maps beside them, in folders of one's own."""
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS
from PIL import Image

from ..errors import UserError
from ..progress import in_threads
from .cache import Cache, Files
from .files import IMAGES, files_in, images_in
from .findings import Finding
from .headers import header, shown_size
from .loading import what_they_may_mean

MOST_READ = 1000  # label maps of a split that are decoded before a training begins

SUFFIXES = '.png', '.bmp', '.tif', '.tiff', '.webp'  # that keep numbers as they are


@DATASETS.register_module()
class LabelMaps(BaseDataset):
    """Segmentation data: an image folder and a label folder, files paired by their names.

    ``data_prefix`` has 'img_path' and 'seg_map_path'. The names may have any suffix of images
    (mmseg's BaseSegDataset takes one), and lie in subfolders. A label map is called as its image;
    without 'seg_map_path' there are none.

    Args:
        ann_file: a text file with names in the image folder, one a line; '' for all images there.

    Raises:
        UserError: no images, one without a label map, or with several.
    """
    METAINFO = dict(classes=(), palette=[])

    def load_data_list(self) -> list[dict]:
        """Paths, as mmseg's transforms take them."""
        images, labels = Path(self.data_prefix['img_path']), self.data_prefix.get('seg_map_path')
        maps = {}
        for path in files_in(Path(labels)) if labels else ():
            if path.suffix.lower() in SUFFIXES:
                maps.setdefault(path.relative_to(labels).with_suffix(''), []).append(path)
        if self.ann_file:
            names = [Path(line) for line in Path(self.ann_file).read_text().splitlines() if line]
        else:
            names = [path.relative_to(images) for path in images_in(images)]
        if not names:
            raise UserError(f'the folder {images} holds no images ({", ".join(IMAGES)})')
        if not labels:
            return [dict(img_path=str(images / name), reduce_zero_label=False, seg_fields=[])
                    for name in names]
        found = {name: maps.get(name.with_suffix(''), []) for name in names}
        lacking = [str(name) for name, paths in found.items() if len(paths) != 1]
        if lacking:
            raise UserError(
                f'{len(lacking)} of {len(names)} images in {images} have no label map of their '
                f'name, or several, in {labels} ({", ".join(SUFFIXES)}): '
                + ', '.join(lacking[:5]) + (', …' if len(lacking) > 5 else ''))
        return [dict(img_path=str(images / name), seg_map_path=str(paths[0]), label_map=None,
                     reduce_zero_label=False, seg_fields=[]) for name, paths in found.items()]


class MapsCheck:
    """Decodes label maps and says what is wrong: of all, or of so many spread over a large set.

    Args:
        values: {value in the files: class number, or 255 for unlabelled}.
        most: about so many label maps are decoded where they are not all known from an earlier
            check; None for all.

    Attributes:
        pairs: what was decoded, as :class:`LabelMaps` lists it.
        read: of each, ((width, height) of the image, {value: pixels}), or in words why not.
        findings: what is wrong.
    """

    def __init__(self, dataset: LabelMaps, values: dict[int, int], most: int | None = MOST_READ):
        self.dataset, self.values, self.findings = dataset, values, []
        self.listed = dataset.load_data_list()
        entries = [(pair['seg_map_path'], pair['img_path']) for pair in self.listed]
        cache = Cache('label_maps', entries)
        self.pairs = self.listed
        if most and len(entries) > most and None in cache.known():
            step = -(-len(entries) // most)  # every so many-th
            self.pairs, cache = self.listed[::step], Cache('label_maps', entries[::step])
        self.read = [found if isinstance(found, str) else (tuple(found[0]), dict(found[1]))
                     for found in cache.read(decode)]
        strange, blank, broken = {}, [], {}
        for pair, found in zip(self.pairs, self.read, strict=True):
            if isinstance(found, str):
                broken.setdefault(found, []).append(pair)
                continue
            _, counts = found
            unknown = tuple(sorted(counts.keys() - values.keys()))
            if unknown:
                strange.setdefault(unknown, []).append(pair)
            elif all(values[value] == 255 for value in counts):
                blank.append(pair)
        for what, pairs in broken.items():
            self.add(what, pairs, error=True)
        for unknown, pairs in strange.items():
            self.add(f'label maps have the values {list(unknown)[:8]}, which the description of '
                     'the data gives no meaning', pairs, what_they_may_mean(list(unknown)),
                     error=True)
        if blank:
            self.add('label maps have no labelled pixel', blank, 'nothing is learned from them',
                     error=len(blank) == len(self.pairs))

    def add(self, what: str, pairs: list[dict], remedy: str = '', error: bool = False):
        self.findings.append(Finding(
            self.dataset.data_prefix['seg_map_path'], what,
            [Path(pair['seg_map_path']).name for pair in pairs], total=len(self.pairs),
            remedy=remedy, error=error, images=[pair['img_path'] for pair in pairs]))


def decode(entries: list[Files]) -> Iterator[list | str]:
    """:func:`values_of` of each."""
    return in_threads(values_of, entries, 'reading label maps', 'maps')


def values_of(files: Files) -> list | str:
    """The image's size and the pixels of each value in its label map; or in words why not.

    Args:
        files: the label map and its image.

    Returns:
        [[width, height], [[value, pixels], ...]].
    """
    try:
        with Image.open(files[0]) as labels:
            numbers = np.asarray(labels)
    except Exception as error:  # what damaged bytes make Pillow do is anybody's guess
        return f'label maps or images cannot be read ({type(error).__name__})'
    found = header(files[1])
    if isinstance(found, str):
        return f'label maps or images cannot be read ({found})'
    if numbers.ndim != 2:
        return 'label maps are colour pictures, not one class number a pixel'
    size = shown_size(found)
    if numbers.shape[::-1] != size:
        return ('label maps lie on their images as stored, but EXIF turns the images'
                if numbers.shape[::-1] == found[0] else
                'label maps have another size than their images')
    if numbers.dtype == np.uint8:  # sorting takes far longer
        counts = np.bincount(numbers.ravel(), minlength=256)
        values = counts.nonzero()[0]
        counts = counts[values]
    else:
        values, counts = np.unique(numbers, return_counts=True)
    return [list(size), list(zip(values.tolist(), counts.tolist(), strict=True))]
