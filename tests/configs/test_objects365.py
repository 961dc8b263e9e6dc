"""Objects365: a small one in its owners' layout is checked, read and scored by its experiment."""
import json
from pathlib import Path

import pytest
import torch
from mmdet.datasets.objects365 import Objects365V2Dataset
from mmengine.registry import DATASETS, METRICS, DefaultScope
from PIL import Image

from downstream.data.checks import check_data
from downstream.errors import UserError

CLASSES = Objects365V2Dataset.METAINFO['classes']


@pytest.fixture
def cfg(load, tmp_path, monkeypatch):
    for split, name in (('train', 'images/v1/patch0/a.jpg'), ('val', 'images/v2/patch16/b.jpg')):
        place = tmp_path / split / '/'.join(name.split('/')[-2:])
        place.parent.mkdir(parents=True)
        Image.new('RGB', (64, 48)).save(place)
        images = [dict(id=7, file_name=name, width=64, height=48),
                  dict(id=8, file_name='images/v2/patch16/objects365_v2_00908726.jpg', width=64,
                       height=48)]  # which was never published
        boxes = [dict(id=1, image_id=7, category_id=365, bbox=[8, 8, 30, 20], area=600, iscrowd=0)]
        path = tmp_path / f'annotations/zhiyuan_objv2_{split}.json'
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(dict(images=images, annotations=boxes, categories=[
            dict(id=number, name=name) for number, name in enumerate(CLASSES, 1)])))
    monkeypatch.setenv('OBJECTS365_ROOT', str(tmp_path))
    return load('dino_focalnet_l_5scale_objects365_26e')


def test_it_is_read(cfg):
    check_data(cfg, 'train', 'val')
    with DefaultScope.overwrite_default_scope('mmdet'):
        train, val = (DATASETS.build(cfg[f'{split}_dataloader'].dataset)
                      for split in ('train', 'val'))
        metric = METRICS.build(cfg.val_evaluator)
    assert len(train) == len(val) == 1  # filter_empty_gt would not leave the second out
    sample = val[0]['data_samples']
    assert sample.img_path.endswith('val/patch16/b.jpg')
    assert sample.gt_instances.labels.tolist() == [364]
    assert len(train.metainfo['classes']) == cfg.model.bbox_head.num_classes == 365

    metric.dataset_meta = val.metainfo
    found = dict(bboxes=torch.tensor([[8., 8., 38., 28.]]), scores=torch.tensor([0.9]),
                 labels=torch.tensor([364]))
    metric.process({}, [dict(img_id=7, ori_shape=(48, 64), pred_instances=found)])
    assert metric.evaluate(1)['coco/bbox_mAP'] == 1


def test_a_missing_image_is_named(cfg):
    Path(cfg.data_root, 'train/patch0/a.jpg').unlink()
    Path(cfg.data_root, 'train/patch0/other.jpg').touch()
    with pytest.raises(UserError, match=r'1 of 1 images listed in .*not in .*train/: patch0/a.jpg'
                                        r'(.|\n)*environment variable OBJECTS365_ROOT \(now'):
        check_data(cfg, 'train')
