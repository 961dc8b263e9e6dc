"""ONNX files give what PyTorch gives, at any size."""
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import command, refused, weights_of
from mmengine.config import Config
from mmengine.registry import MODELS
from PIL import Image
from torch import nn

from downstream import Predictor
from downstream.errors import UserError
from downstream.looking import exporting
from downstream.looking.exporting import (
    FreeAdaptivePool,
    apart,
    compare,
    difference,
    export,
    open_session,
    run,
    trace,
)
from downstream.looking.onnx_model import OnnxPredictor
from downstream.training.launching import read_config

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


@pytest.fixture
def photo(tmp_path):
    image = np.random.default_rng(0).integers(0, 256, (30, 41, 3)).repeat(8, 0).repeat(8, 1)
    Image.fromarray(image.astype(np.uint8)).save(tmp_path / 'photo.png')
    return str(tmp_path / 'photo.png')


def weights(name, change=lambda state: None):
    path = weights_of(ROOT / f'configs/demo/{name}.py', f'{name}.pth')
    content = torch.load(path)
    change(content['state_dict'])
    torch.save(content, path)
    return path


def varied(state):
    """An untrained DETR says the same class of every query: let them differ."""
    state['query_embedding.weight'].mul_(5)
    state['bbox_head.fc_cls.weight'].mul_(10)


def sure(state):
    """An untrained RetinaNet says 0.01 of everything: let it find more than is wanted."""
    state['bbox_head.retina_cls.bias'].fill_(-2)
    state['bbox_head.retina_cls.weight'].mul_(15)
    state['bbox_head.retina_reg.weight'].mul_(15)


@pytest.mark.usefixtures('elsewhere')
@pytest.mark.parametrize('name', ['upernet_focalnet', 'retinanet_focalnet',
                                  'memorise_detr_focalnet'])
def test_results_are_those_of_the_checkpoint(name, photo):
    change = dict(retinanet_focalnet=sure, memorise_detr_focalnet=varied)
    path = weights(name, change.get(name, lambda state: None))
    cfg = read_config(ROOT / f'configs/demo/{name}.py', {}, 'model', 'test_dataloader')
    pipeline = cfg.test_dataloader.dataset.pipeline
    pipeline[1:1] = [dict(type='Resize', scale=(400, 300), keep_ratio=True)]
    pipeline[2:] = [step for step in pipeline[2:] if step.type != 'Resize']
    model = Predictor.from_checkpoint(cfg, path, 'cpu')
    assert export(model, 'model.onnx', values=np.arange(7) if 'uper' in name else None)
    exported = OnnxPredictor('model.onnx')
    wanted, found = model(photo), exported(photo)
    assert exported.classes == model.classes and exported.meta == model.meta
    assert exported.resize == dict(scale=[400, 300], keep_ratio=True)
    assert type(found) is type(wanted)
    if name == 'upernet_focalnet':
        assert found.labels.shape == (240, 328) and len(np.unique(found.labels)) > 1
        assert (found.labels != wanted.labels).mean() < 1e-3
    else:
        assert len(wanted) == (100 if 'retina' in name else 20)
        assert len(np.unique(wanted.labels)) > 1
        assert difference(('boxes', ), *([r.boxes, r.scores, r.labels]
                                         for r in (wanted, found))) < 0.02
    line, = compare(model, exported, [photo])
    assert 'onnxruntime' in line


@pytest.mark.usefixtures('elsewhere')
def test_the_commands(photo, capsys):
    config = str(ROOT / 'configs/demo/retinanet_focalnet.py')
    path = weights('retinanet_focalnet', sure)
    command('export').main([config, path, '-o', 'model.onnx', '--check', photo])
    assert 'onnxruntime' in capsys.readouterr().out
    command('predict').main(['model.onnx', photo, '-o', 'exported'])
    command('predict').main([config, path, photo, '-o', 'plain'])
    rows = [json.loads(Path(out, 'predictions.json').read_text()) for out in ('exported', 'plain')]
    assert len(rows[0]) == len(rows[1]) == 100
    for a, b in zip(*rows, strict=True):
        assert a['category_id'] == b['category_id'] and abs(a['score'] - b['score']) < 1e-3
    assert '--tta' in refused(
        command('predict').main, 'model.onnx', photo, '-o', 'exported', '--tta')
    command('export').main([config, path, '-o', 'backbone.onnx', '--backbone-only'])
    assert 'a backbone alone' in refused(
        command('predict').main, 'backbone.onnx', photo, '-o', 'exported')
    Path('broken.onnx').write_bytes(b'no model')
    assert 'cannot be read' in refused(
        command('predict').main, 'broken.onnx', photo, '-o', 'x')


@pytest.mark.usefixtures('elsewhere')
@pytest.mark.parametrize(('name', 'why'), [('maskrcnn_focalnet', 'RoIAlign'),
                                           ('dino_focalnet', 'deformable attention')])
def test_what_cannot_be_exported_says_why(name, why):
    config = str(ROOT / f'configs/demo/{name}.py')
    message = refused(command('export').main, config, weights_of(config), '-o', 'model.onnx')
    assert why in message and '--backbone-only' in message and not Path('model.onnx').exists()


def test_a_file_of_other_results_is_noticed(tmp_path):
    graph = exporting.graph_of(Bare(FAMILIES['focalnet'].backbone), backbone_only=True)
    trace(graph, tmp_path / 'model.onnx')
    graph.model.norm0.weight.data *= 1.01
    with pytest.raises(UserError, match='something else than PyTorch'):
        exporting.check_sizes(graph, tmp_path / 'model.onnx')


def test_objects_are_compared_both_ways():
    boxes = np.float32([[0, 0, 9, 9], [20, 20, 30, 30]])
    one, two = ([boxes[:n], np.ones(n, np.float32), np.zeros(n, int)] for n in (1, 2))
    assert difference(('boxes', ), two, two) == 0
    assert difference(('boxes', ), one, two) == difference(('boxes', ), two, one) == 0.5
