"""The small versions of all families fit into all heads."""
import json

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS

import backbones  # noqa: F401
from downstream.experiments import CONFIGS
from downstream.scoring import learning

FAMILIES = Config.fromfile(CONFIGS / '_base_' / 'demo_backbones.py').families
PAIRS = [(method, family) for method in learning.METHODS for family in FAMILIES]


@pytest.mark.parametrize(('method', 'family'), PAIRS)
def test_fits(method, family, monkeypatch):
    monkeypatch.setenv('DEMO_ROOT', '')
    cfg = learning.compose(method, FAMILIES[family])
    torch.manual_seed(0)
    model = MODELS.build(dict(cfg.model, _scope_=cfg.default_scope)).eval()
    with torch.no_grad():
        maps = model.extract_feat(torch.zeros(1, 3, 160, 160))
    sides = [m.shape[-1] for m in maps]
    pyramid = [20, 10, 5, 2, 1] if 'pyramid' in FAMILIES[family] else [20, 10, 5, 3, 2]
    assert sides == {'maskrcnn': [40, 20, 10, 5, 3], 'cascade': [40, 20, 10, 5, 3],
                     'retinanet': pyramid, 'atss': pyramid, 'dino': pyramid[:4], 'detr': [10],
                     }.get(method, [40, 20, 10, 5])


def test_table(tmp_path, monkeypatch):
    monkeypatch.setattr(learning, 'OUT', tmp_path)
    folder = tmp_path / 'detr' / 'focalnet'
    folder.mkdir(parents=True)
    (folder / 'result.json').write_text(json.dumps(
        dict(score=0.75, first_loss=20.123, last_loss=0.512, minutes=3)))
    text = learning.table(['maskrcnn', 'detr'], ['focalnet', 'container'])
    assert text.splitlines()[-2:] == [
        '| focalnet |  | 0.75, loss 20.1 -> 0.51 |', '| container |  |  |']
    assert 'maskrcnn bbox_mAP (>= 0.3)' in text
