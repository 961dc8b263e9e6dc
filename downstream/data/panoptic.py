"""COCO's panoptic maps, read without panopticapi, which is on no package index."""
import os.path as osp

import cv2
import mmengine.fileio as fileio
import numpy as np
from mmdet.datasets import CocoPanopticDataset
from mmdet.datasets.transforms import LoadAnnotations, LoadPanopticAnnotations
from mmdet.evaluation.functional import INSTANCE_OFFSET
from mmengine.registry import DATASETS, TRANSFORMS

from ..errors import UserError
from .headers import check_pixels
from .loading import REPAIR


def rgb_to_id(image: np.ndarray) -> np.ndarray:
    """(..., 3) RGB uint8 to (...) int32 segment ids: R + 256 G + 256^2 B, COCO's encoding."""
    red, green, blue = np.moveaxis(image, -1, 0)
    return red + np.int32(256) * green + np.int32(256**2) * blue


def id_to_rgb(ids: np.ndarray) -> np.ndarray:
    """The inverse of :func:`rgb_to_id`, for ids below 256^3."""
    return np.stack([ids & 255, ids >> 8 & 255, ids >> 16 & 255], -1).astype(np.uint8)


def read_ids(content: bytes) -> np.ndarray:
    """(H, W) int32 segment ids of a panoptic map's file.

    Raises:
        OSError: it is truncated, not an image, or far too large.
    """
    check_pixels(content)
    try:
        image = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR)
    except cv2.error:  # an empty file, or more pixels than OpenCV takes
        image = None
    if image is None:
        raise OSError('truncated, or not an image')
    return rgb_to_id(image[..., ::-1])


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


@DATASETS.register_module()
class PanopticMaps(CocoPanopticDataset):
    """CocoPanopticDataset, same arguments, whose images may say what their map is called ('map').

    Upstream's has the name of the image with .png in the place of .jpg, and no other suffix.
    """

    def parse_data_info(self, raw_data_info: dict) -> dict:
        """Upstream's, with the map that the image says."""
        info = super().parse_data_info(raw_data_info)
        name = raw_data_info['raw_img_info'].get('map')
        if name and info['seg_map_path']:
            info['seg_map_path'] = osp.join(self.data_prefix['seg'], name)
        return info


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
            ids = read_ids(fileio.get(path, backend_args=self.backend_args))
        except OSError as error:
            raise UserError(f'panoptic map {path} cannot be loaded: {error}; {REPAIR}') from None
        if ids.shape != tuple(results['ori_shape']):
            raise UserError(f'panoptic map {path} has the shape {ids.shape}, its image '
                            f'{results["img_path"]} {tuple(results["ori_shape"])}')
        super()._load_masks_and_semantic_segs(results)
