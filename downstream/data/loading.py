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
from .headers import BOMB, check_pixels

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
    complete files with something behind the marker pass. What claims more pixels than Pillow takes
    is not decoded at all.

    Raises:
        UserError: the image is missing, truncated, not an image or far too large (unless
            ``ignore_empty``).
    """

    def transform(self, results):
        """results['img_path'] -> 'img' (H, W, C), 'img_shape' and 'ori_shape' (H, W)."""
        path = results['img_path']
        try:
            content = fileio.get(path, backend_args=self.backend_args)
            if not content:
                raise OSError('the file is empty')  # which OpenCV takes for a bug of the caller
            check_pixels(content)
            if content[:2] == b'\xff\xd8' and content.rstrip(b'\0')[-2:] != b'\xff\xd9':
                Image.open(io.BytesIO(content)).load()
            img = mmcv.imfrombytes(content, flag=self.color_type, backend=self.imdecode_backend)
            if img is None:
                raise OSError('truncated, or not an image')
        except Exception as error:  # what damaged bytes make the decoders do is anybody's guess
            if self.ignore_empty:
                return None
            raise UserError(f'image {path} cannot be loaded: {words_of(error)}; {REPAIR}'
                            ) from None
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
        except Exception as error:  # Pillow's, for missing and damaged files, of any kind
            raise UserError(f'label map {path} cannot be loaded: {words_of(error)}; {REPAIR}'
                            ) from None
        shape = results['gt_seg_map'].shape
        if shape != tuple(results['ori_shape']):
            raise UserError(f'label map {path} has the shape {shape}, its image '
                            f'{results["img_path"]} {tuple(results["ori_shape"])}: it should have '
                            'one class number a pixel')
        if self.table is not None:
            if '://' not in path and (strange := strange_value(path)) is not None:
                raise UserError(f'label map {path} has the value {strange:g}: values are whole '
                                'numbers from 0 to 255')
            classes = self.table[results['gt_seg_map']]
            if (classes == UNKNOWN).any():
                strange = np.unique(results['gt_seg_map'][classes == UNKNOWN]).tolist()
                raise UserError(f'label map {path} has the values {strange}, which the description '
                                f'of the data gives no meaning: {what_they_may_mean(strange)}')
            results['gt_seg_map'] = classes.astype(np.uint8)
        return results


def words_of(error: Exception) -> str:
    """What a decoder has to say, in short."""
    if isinstance(error, Image.DecompressionBombError):
        return BOMB
    return ' '.join(str(error).split())[:200] or type(error).__name__


def strange_value(path: str) -> float | None:
    """The first value that is no byte, in a label map with more than a byte a pixel.

    (mmseg keeps the low byte: 256 would be 0, and -1 would be 255.)
    """
    with Image.open(path) as image:
        if image.mode[0] not in 'IF':
            return None
        numbers = np.asarray(image)
    strange = numbers[~np.isin(numbers, np.arange(256))]
    return float(strange[0]) if strange.size else None


def what_they_may_mean(values: list[int]) -> str:
    """A guess about label values that nothing was said of."""
    if 255 in values:
        return '255 is often "unlabelled": say ignore: 255'
    if values == [0]:
        return '0 is often the background: name it among the classes, or say ignore: 0'
    return 'name them among the classes, {value: name}, or say that they are to be ignored'
