"""Image and label loading that stops at a broken file, and names it.

The policy: a run stops rather than train or score on half an image. Repair the file (or take it
out of the annotations) and go on with ``tools/train.py CONFIG --resume``.
"""
import io
import re

import mmcv
import mmengine.fileio as fileio
import numpy as np
from mmcv.transforms import BaseTransform, LoadImageFromFile
from mmengine.registry import TRANSFORMS
from PIL import Image

from ..errors import UserError

UNKNOWN = -1  # in a table of label values
REPAIR = 'get the file again, then go on with tools/train.py CONFIG --resume'


def type_name(step) -> str:
    """The name of a pipeline step's class, without a scope."""
    return step['type'].rpartition('.')[2] if isinstance(step['type'], str) else (
        step['type'].__name__)


def is_image_loader(step) -> bool:
    return type_name(step).startswith('LoadImage')


def without_truth(pipeline: list) -> list:
    """A config's pipeline for images that have no annotations: no step loads them.

    Those of nested transforms (TestTimeAug's alternatives) are left out too.
    """
    kept = []
    for step in pipeline:
        if not isinstance(step, dict):  # one after the other, or alternatives
            kept += filter(None, [without_truth(step)])
        elif is_image_loader(step) or not re.match('Load', type_name(step)):
            kept.append({**step, 'transforms': without_truth(step['transforms'])}
                        if 'transforms' in step else step)
    return kept


# Under upstream's name, in its place: mmdet's and mmseg's inferencers look for that name in a
# config's pipeline.
@TRANSFORMS.register_module('LoadImageFromFile', force=True)
class LoadImage(LoadImageFromFile):
    """mmcv's LoadImageFromFile, same arguments, for images that may be broken.

    Some OpenCV versions fill the missing part of a truncated JPEG with grey and say nothing. A
    JPEG that does not end in its end marker is therefore decoded by Pillow too, which raises;
    complete files with something behind the marker pass.

    Raises:
        UserError: the image is missing, truncated or not an image (unless ``ignore_empty``).
    """

    def transform(self, results):
        """results['img_path'] -> 'img' (H, W, C), 'img_shape' and 'ori_shape' (H, W)."""
        path = results['img_path']
        try:
            content = fileio.get(path, backend_args=self.backend_args)
            if not content:
                raise OSError('the file is empty')  # which OpenCV takes for a bug of the caller
            if content[:2] == b'\xff\xd8' and content.rstrip(b'\0')[-2:] != b'\xff\xd9':
                Image.open(io.BytesIO(content)).load()
            img = mmcv.imfrombytes(content, flag=self.color_type, backend=self.imdecode_backend)
            if img is None:
                raise OSError('truncated, or not an image')
        except OSError as error:
            if self.ignore_empty:
                return None
            raise UserError(f'image {path} cannot be loaded: {error}; {REPAIR}') from None
        if self.to_float32:
            img = img.astype(np.float32)
        results['img'] = img
        results['img_shape'] = results['ori_shape'] = img.shape[:2]
        return results


@TRANSFORMS.register_module()
class LoadLabels(BaseTransform):
    """mmseg's LoadAnnotations, same arguments, naming the label map that it cannot load.

    Holds upstream's transform rather than inheriting from it, so that detection runs do not
    import mmseg.

    Args:
        values: {value in the files: class number, or 255 for unlabelled}. Without it the values
            are the numbers.

    Raises:
        UserError: a label map is missing, damaged, of another size than its image, or has a value
            that is not in ``values``.
    """

    def __init__(self, values: dict[int, int] | None = None, **kwargs):
        self.load = TRANSFORMS.build(dict(type='mmseg.LoadAnnotations', **kwargs))
        self.table = None
        if values is not None:
            self.table = np.full(256, UNKNOWN)
            self.table[list(values)] = list(values.values())

    def transform(self, results):
        if 'seg_map_path' not in results:  # a picture without labels, from mmseg's inferencer
            return results
        path = results['seg_map_path']
        try:
            results = self.load(results)
        except OSError as error:  # Pillow's, for missing, truncated and foreign files alike
            raise UserError(f'label map {path} cannot be loaded: {error}; {REPAIR}') from None
        shape = results['gt_seg_map'].shape
        if shape != tuple(results['ori_shape']):
            raise UserError(f'label map {path} has the shape {shape}, its image '
                            f'{results["img_path"]} {tuple(results["ori_shape"])}: it should have '
                            'one class number a pixel')
        if self.table is not None:
            if '://' not in path and (largest := largest_value(path)) > 255:
                raise UserError(f'label map {path} has the value {largest}: values are 0 to 255')
            classes = self.table[results['gt_seg_map']]
            if (classes == UNKNOWN).any():
                strange = np.unique(results['gt_seg_map'][classes == UNKNOWN]).tolist()
                raise UserError(f'label map {path} has the values {strange}, which the description '
                                f'of the data gives no meaning: {what_they_may_mean(strange)}')
            results['gt_seg_map'] = classes.astype(np.uint8)
        return results


def largest_value(path: str) -> int:
    """Of a label map with more than a byte a pixel, of which mmseg keeps the low one; 0 of others.
    """
    with Image.open(path) as image:
        return int(np.asarray(image).max()) if image.mode[0] in 'IF' else 0


def what_they_may_mean(values: list[int]) -> str:
    """A guess about label values that nothing was said of."""
    if 255 in values:
        return '255 is often "unlabelled": say ignore: 255'
    if values == [0]:
        return '0 is often the background: name it among the classes, or say ignore: 0'
    return 'name them among the classes, {value: name}, or say that they are to be ignored'
