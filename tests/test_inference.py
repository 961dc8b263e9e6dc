"""mmdet's and mmseg's own inferencers take the project's configs."""
from pathlib import Path

import numpy as np
import pytest
from mmengine import Config
from mmengine.registry import DefaultScope

ROOT = Path(__file__).resolve().parents[1]
IMAGE = np.random.default_rng(0).integers(0, 256, (96, 128, 3), dtype=np.uint8)


@pytest.fixture(autouse=True)
def own_scope():
    with DefaultScope.overwrite_default_scope('mmengine'):
        yield


def test_detection():
    from mmdet.apis import DetInferencer
    cfg = Config.fromfile(ROOT / 'configs/demo/maskrcnn_focalnet.py')
    inferencer = DetInferencer(cfg, weights=None, device='cpu', show_progress=False)
    prediction, = inferencer(IMAGE, no_save_pred=True)['predictions']
    assert {'labels', 'scores', 'bboxes', 'masks'} <= prediction.keys()


def test_segmentation():
    from mmseg.apis import MMSegInferencer
    cfg = Config.fromfile(ROOT / 'configs/demo/upernet_focalnet.py')
    inferencer = MMSegInferencer(cfg, weights=None, device='cpu', classes=cfg.metainfo.classes,
                                 palette=cfg.metainfo.palette)
    labels = inferencer(IMAGE, show=False)['predictions']
    assert labels.shape == IMAGE.shape[:2] and labels.max() < 7
