"""Images with label maps beside them, in folders of one's own."""
from pathlib import Path

from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS

from ..errors import UserError
from .layouts import IMAGES

SUFFIXES = '.png', '.bmp', '.tif', '.tiff', '.webp'  # that keep numbers as they are


@DATASETS.register_module()
class LabelMaps(BaseDataset):
    """Segmentation data: an image folder and a label folder, files paired by their names.

    ``data_prefix`` has 'img_path' and 'seg_map_path'. The names may have any suffix of images
    (mmseg's BaseSegDataset takes one), and lie in subfolders. A label map is called as its image.

    Args:
        ann_file: a text file with names in the image folder, one a line; '' for all images there.

    Raises:
        UserError: no images, one without a label map, or with several.
    """
    METAINFO = dict(classes=(), palette=[])

    def load_data_list(self) -> list[dict]:
        """Paths, as mmseg's transforms take them."""
        images, labels = (Path(self.data_prefix[key]) for key in ('img_path', 'seg_map_path'))
        maps = {}
        for path in sorted(labels.rglob('*')):
            if path.suffix.lower() in SUFFIXES:
                maps.setdefault(path.relative_to(labels).with_suffix(''), []).append(path)
        if self.ann_file:
            names = [Path(line) for line in Path(self.ann_file).read_text().splitlines() if line]
        else:
            names = [path.relative_to(images) for path in sorted(images.rglob('*'))
                     if path.suffix.lower() in IMAGES]
        if not names:
            raise UserError(f'the folder {images} holds no images ({", ".join(IMAGES)})')
        found = {name: maps.get(name.with_suffix(''), []) for name in names}
        lacking = [str(name) for name, paths in found.items() if len(paths) != 1]
        if lacking:
            raise UserError(
                f'{len(lacking)} of {len(names)} images in {images} have no label map of their '
                f'name, or several, in {labels} ({", ".join(SUFFIXES)}): '
                + ', '.join(lacking[:5]) + (', …' if len(lacking) > 5 else ''))
        return [dict(img_path=str(images / name), seg_map_path=str(paths[0]), label_map=None,
                     reduce_zero_label=False, seg_fields=[]) for name, paths in found.items()]
