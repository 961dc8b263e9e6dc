"""ONNX files give what PyTorch gives, at any size."""
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS
from torch import nn

from downstream.looking import exporting
from downstream.looking.exporting import FreeAdaptivePool, apart, open_session, run, trace

pytest.importorskip('onnx')
pytest.importorskip('onnxruntime')
ROOT = Path(__file__).resolve().parents[3]
FAMILIES = Config.fromfile(ROOT / 'configs/_base_/demo_backbones.py').families


class Bare(nn.Module):
    """A backbone without a detector around it."""

    def __init__(self, cfg):
        super().__init__()
        from mmdet.models import DetDataPreprocessor
        torch.manual_seed(0)
        self.data_preprocessor = DetDataPreprocessor([120.] * 3, [60.] * 3, bgr_to_rgb=True)
        self.backbone = MODELS.build(cfg).eval()
        for name, tensor in self.backbone.named_parameters():
            if name.endswith('bias_table') or 'pos' in name or 'gamma' in name:
                nn.init.normal_(tensor.data)  # small by default: a mistake would not be seen


@pytest.mark.parametrize('family', FAMILIES)
def test_backbones_take_any_size(family, tmp_path):
    model = Bare(FAMILIES[family].backbone)
    graph = exporting.graph_of(model, backbone_only=True)
    trace(graph, tmp_path / 'model.onnx')
    session = open_session(tmp_path / 'model.onnx')
    for size in (320, 416), (203, 261):
        image = torch.rand(1, 3, *size) * 255
        maps = model.backbone((image - 120) / 60)  # not through the graph's own preparation
        found = run(session, ('image', ), (image, ))
        assert len(found) == len(maps) == 4
        for a, b in zip(maps, found, strict=True):
            assert apart(a.detach().numpy(), b) < 1e-4


@pytest.mark.parametrize('size', [(1, 1), (5, 7), (6, 6), (16, 23)])
@pytest.mark.parametrize('grid', [2, 3, 6])
def test_pooling_of_any_size_is_adaptive_pooling(grid, size):
    x = torch.randn(2, 3, *size)
    np.testing.assert_allclose(FreeAdaptivePool(grid)(x), nn.AdaptiveAvgPool2d(grid)(x), atol=1e-6)
