"""Pictures of predictions."""
from pathlib import Path

import numpy as np
import torch
from mmengine.structures import InstanceData, PixelData
from PIL import Image

from ..data.panoptic import read_ids
from ..scoring.predictions import SHOWN


def draw(dataset, index: int, prediction: dict) -> tuple[np.ndarray, np.ndarray]:
    """Ground truth and prediction on the image, (H, W, 3) RGB, by mmdet's or mmseg's visualizer."""
    item = dataset[index]
    image = np.ascontiguousarray(item['inputs'].permute(1, 2, 0).numpy()[..., ::-1])  # from BGR
    sample = item['data_samples']
    if 'pred_sem_seg' in prediction:
        from mmseg.visualization import SegLocalVisualizer
        visualizer = SegLocalVisualizer(alpha=0.6)
        sample.pred_sem_seg = PixelData(data=prediction['pred_sem_seg']['data'])
        options = {}
    else:
        from mmdet.visualization import DetLocalVisualizer
        visualizer = DetLocalVisualizer(line_width=2)
        options = dict(pred_score_thr=SHOWN)
        if 'pred_panoptic_seg' in prediction:
            sample = panoptic_sample(dataset, index, prediction)
        else:
            add_instances(sample, prediction['pred_instances'])
    visualizer.dataset_meta = dataset.metainfo
    pictures = []
    for truth in True, False:
        visualizer.add_datasample('', image, sample, draw_gt=truth, draw_pred=not truth, **options)
        pictures.append(visualizer.get_image())
    return tuple(pictures)


def add_instances(sample, predicted: dict):
    """Put boxes, and masks if any, into a sample as the visualizer takes them."""
    from mmdet.structures.bbox import get_box_tensor
    from pycocotools.mask import decode
    sample.gt_instances.bboxes = get_box_tensor(sample.gt_instances.bboxes)
    sample.pred_instances = InstanceData(**predicted)
    if 'masks' in predicted:  # run-length encoded
        masks = [decode(mask).astype(bool) for mask in predicted['masks']]
        sample.pred_instances.masks = torch.from_numpy(
            np.stack(masks) if masks else np.zeros((0, *sample.ori_shape), bool))


def panoptic_sample(dataset, index: int, prediction: dict):
    """Both as segments: what the dataset gives is made for training, instances and stuff apart."""
    from mmdet.evaluation.functional import INSTANCE_OFFSET
    from mmdet.structures import DetDataSample
    info = dataset.get_data_info(index)
    ids = read_ids(Path(info['seg_map_path']).read_bytes())
    nothing = len(dataset.metainfo['classes'])
    truth = np.full((1, *ids.shape), nothing, np.int64)
    for number, segment in enumerate(info['segments_info']):
        truth[0][ids == segment['id']] = segment['category'] + number * INSTANCE_OFFSET
    found = prediction['pred_panoptic_seg']['sem_seg'].numpy()
    return DetDataSample(**{  # the visualizer cannot draw nothing
        key: PixelData(sem_seg=seg) for key, seg in
        dict(gt_panoptic_seg=truth, pred_panoptic_seg=found).items() if (seg != nothing).any()})


def contact_sheet(folder: Path, file: Path, rows: int = 4, columns: int = 2):
    """A few of the pictures that tools/test.py drew, truth on the left and prediction on the right.
    """
    pictures = sorted(folder.rglob('*.[pj][np]g'))[:rows * columns]
    tiles = [Image.open(picture).convert('RGB').resize((640, 320)) for picture in pictures]
    sheet = Image.new('RGB', (650 * columns, 330 * rows), 'white')
    for i, tile in enumerate(tiles):
        sheet.paste(tile, (650 * (i % columns) + 5, 330 * (i // columns) + 5))
    sheet.save(file)
