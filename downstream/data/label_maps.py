"""Images with label maps beside them, in folders of one's own."""
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS
from PIL import Image
from tqdm import tqdm

from ..errors import UserError
from .files import IMAGES, files_in, images_in
from .findings import Finding
from .loading import what_they_may_mean

MOST_READ = 1000  # label maps that are decoded before a training begins

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


def check_label_maps(dataset: LabelMaps, values: dict[int, int]) -> list[Finding]:
    """What is wrong with label maps: of all, or of so many spread over a large set.

    Args:
        values: {value in the files: class number, or 255 for unlabelled}.
    """
    pairs = dataset.load_data_list()
    chosen = pairs[::-(-len(pairs) // MOST_READ)]  # every so many-th
    with ThreadPoolExecutor() as pool:
        read = list(tqdm(pool.map(values_of, chosen), total=len(chosen), desc='reading label maps',
                         disable=len(chosen) < 100))
    strange, blank, broken = {}, [], {}
    for pair, found in zip(chosen, read, strict=True):
        name = Path(pair['seg_map_path']).name
        if isinstance(found, str):
            broken.setdefault(found, []).append(name)
            continue
        unknown = tuple(sorted(set(found) - values.keys()))
        if unknown:
            strange.setdefault(unknown, []).append(name)
        elif all(values[value] == 255 for value in found):
            blank.append(name)
    where, total = dataset.data_prefix['seg_map_path'], len(chosen)
    findings = [Finding(where, what, names, total=total, error=True) for what, names in
                broken.items()]
    findings += [Finding(where, f'label maps have the values {list(unknown)[:8]}, which the '
                         'description of the data gives no meaning', names, total=total,
                         remedy=what_they_may_mean(list(unknown)), error=True)
                 for unknown, names in strange.items()]
    if blank:
        findings.append(Finding(where, 'label maps have no labelled pixel', blank, total=total,
                                remedy='nothing is learned from them',
                                error=len(blank) == total))
    return findings


def values_of(pair: dict) -> list[int] | str:
    """The values in a label map, or in words why there are none."""
    try:
        with Image.open(pair['seg_map_path']) as labels:
            numbers = np.asarray(labels)
        with Image.open(pair['img_path']) as image:
            size = image.size
    except Exception as error:  # what damaged bytes make Pillow do is anybody's guess
        return f'label maps or images cannot be read ({type(error).__name__})'
    if numbers.ndim != 2:
        return 'label maps are colour pictures, not one class number a pixel'
    if numbers.shape[::-1] != size:
        return 'label maps have another size than their images'
    return np.unique(numbers).tolist()
