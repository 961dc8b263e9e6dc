"""DINO: the published reference point head, and the authors' whole detector."""
from pathlib import Path

import pytest
import torch
from golden_utils import assert_close_to_golden, golden_input, load_golden, rule_value
from mmdet.models.layers import coordinate_to_encoding
from mmdet.structures import DetDataSample
from mmengine.config import Config
from mmengine.registry import MODELS

from downstream.dino import RefPointHead, from_released_dino

CONFIGS = Path(__file__).resolve().parents[2] / 'configs'


def test_wide_encoding_is_thinned_to_the_narrow_one():
    head = RefPointHead(64)
    boxes = torch.rand(2, 5, 4)
    narrow = coordinate_to_encoding(boxes, num_feats=32)
    wide = coordinate_to_encoding(boxes, num_feats=64)
    assert narrow.shape[-1] == 128 and wide.shape[-1] == 256
    torch.testing.assert_close(head(wide), head(narrow), rtol=0, atol=0)


def released_state(golden):
    return {key: rule_value(golden['alias'].get(key, key), shape)
            for key, shape, _ in golden['keys']}


def test_matches_the_release():
    """Logits and boxes of the authors' detector, all 900 queries, with its 91 classes.

    Looser than the other models: the rank of a proposal decides which query it gets, and with these
    weights the scores of a few of the 900 differ by less than float32's rounding. Two that swap
    change all logits by about 2e-4, by way of self-attention; a real mistake changes them by 1e-2.
    """
    golden = load_golden('dino_focalnet_l_fl3_4scale')
    cfg = Config.fromfile(CONFIGS / 'dino_focalnet_l_4scale_12e.py')
    cfg.model.bbox_head.num_classes = 91
    cfg.model.backbone.update(drop_path_rate=0., use_checkpoint=False)
    with torch.device('meta'):
        model = MODELS.build(dict(cfg.model, _scope_='mmdet'))
    model.load_state_dict(from_released_dino(released_state(golden)), assign=True)  # all, no more
    model.eval()
    run, = golden['runs']
    x = golden_input(run['input'])
    sample = DetDataSample(metainfo=dict(
        img_shape=x.shape[2:], batch_input_shape=tuple(x.shape[2:])))
    with torch.no_grad():
        scores, boxes = model._forward(x, [sample])[:2]
    logits, expected_boxes = run['outputs']
    assert_close_to_golden(scores[-1], logits, rtol=3e-3)
    assert_close_to_golden(boxes[-1], expected_boxes, rtol=1e-3)


def test_names_of_another_model():
    with pytest.raises(ValueError, match="fpn.weight is no entry of the authors' DINO"):
        from_released_dino({'fpn.weight': torch.zeros(1)})


def test_images_with_fewer_places_than_queries():
    cfg = Config.fromfile(CONFIGS / 'dino_focalnet_l_4scale_12e.py')
    cfg.model.backbone.update(embed_dim=8, depths=(1, 1, 1, 1), use_checkpoint=False)
    cfg.model.neck.in_channels = [16, 32, 64]
    model = MODELS.build(dict(cfg.model, _scope_='mmdet')).eval()
    sample = DetDataSample(metainfo=dict(img_shape=(128, 128), batch_input_shape=(128, 128)))
    with pytest.raises(ValueError, match="have 340 places .* DINO's 900 queries"):
        model._forward(torch.zeros(1, 3, 128, 128), [sample])
