"""COCO's panoptic maps, read without panopticapi, which is on no package index."""
import cv2
import mmengine.fileio as fileio
import numpy as np
from mmdet.datasets.transforms import LoadAnnotations, LoadPanopticAnnotations
from mmdet.evaluation.functional import INSTANCE_OFFSET
from mmengine.registry import TRANSFORMS

from ..errors import UserError
from .loading import REPAIR


def rgb_to_id(image: np.ndarray) -> np.ndarray:
    """(..., 3) RGB uint8 to (...) int32 segment ids: R + 256 G + 256^2 B, COCO's encoding."""
    return image.astype(np.int32) @ np.array([1, 256, 256**2], np.int32)


def id_to_rgb(ids: np.ndarray) -> np.ndarray:
    """The inverse of :func:`rgb_to_id`, for ids below 256^3."""
    return np.stack([ids & 255, ids >> 8 & 255, ids >> 16 & 255], -1).astype(np.uint8)


def encode_segments(seg: np.ndarray, category_ids: list[int]) -> tuple[bytes, list[dict]]:
    """A model's segments in COCO's panoptic format.

    Args:
        seg: (H, W) class number + 1000 x the number of a thing; as many as there are classes, or
            more, for nothing.
        category_ids: of each class.

    Returns:
        The PNG, and its segments_info: ids from 1 in order of the model's own numbers.
    """
    numbers, where = np.unique(seg, return_inverse=True)
    labels = numbers % INSTANCE_OFFSET
    ids = np.where(labels < len(category_ids), 1 + np.arange(len(numbers)), 0)
    image = id_to_rgb(ids[where.reshape(seg.shape)])
    return cv2.imencode('.png', image[..., ::-1])[1].tobytes(), [
        dict(id=int(i), category_id=category_ids[label])
        for i, label in zip(ids, labels, strict=True) if i]


@TRANSFORMS.register_module()
class LoadPanoptic(LoadPanopticAnnotations):
    """mmdet's LoadPanopticAnnotations, same arguments, naming the map that it cannot load.

    Raises:
        UserError: a panoptic map is missing, truncated, not an image or not of its image's size.
    """

    def __init__(self, with_seg: bool = True, **kwargs):
        # Upstream's own __init__ does no more than this, after importing panopticapi.
        LoadAnnotations.__init__(self, with_seg=with_seg, **{'with_mask': True, **kwargs})
        self.rgb2id = rgb_to_id

    def _load_masks_and_semantic_segs(self, results: dict):
        path = results.get('seg_map_path')
        if path is None:
            return
        try:
            content = np.frombuffer(fileio.get(path, backend_args=self.backend_args), np.uint8)
            image = cv2.imdecode(content, cv2.IMREAD_COLOR) if content.size else None
            if image is None:
                raise OSError('truncated, or not an image')
        except OSError as error:
            raise UserError(f'panoptic map {path} cannot be loaded: {error}; {REPAIR}') from None
        if image.shape[:2] != tuple(results['ori_shape']):
            raise UserError(f'panoptic map {path} has the shape {image.shape[:2]}, its image '
                            f'{results["img_path"]} {tuple(results["ori_shape"])}')
        super()._load_masks_and_semantic_segs(results)
