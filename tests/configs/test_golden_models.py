"""Mask R-CNN and UPerNet with FocalNet-T are the authors' models: names, shapes and outputs."""
from pathlib import Path

import pytest
import torch
from golden_utils import assert_close_to_golden, fill_, golden_input, load_golden
from mmengine import Config
from mmengine.registry import MODELS

CONFIGS = Path(__file__).resolve().parents[2] / 'configs'
# The keys of released_detector_keys.json.
RELEASED = {
    'maskrcnn_focalnet_t_1x': 'maskrcnn_focalnet_t_3x or _1x (lrf)',
    'upernet_focalnet_t_160k': 'upernet_focalnet_t_160k (lrf)',
}


@pytest.fixture(scope='module')
def build():
    models = {}

    def build_once(name):
        if name not in models:
            cfg = Config.fromfile(CONFIGS / f'{name}.py')
            model = MODELS.build(dict(cfg.model, _scope_=cfg.default_scope))
            models[name] = fill_(model).eval()
        return models[name]

    return build_once


@pytest.mark.parametrize('name', RELEASED)
def test_state_dict_has_exactly_the_released_entries(build, name):
    released = load_golden('released_detector_keys')[RELEASED[name]]
    ours = {key: list(value.shape) for key, value in build(name).state_dict().items()}
    assert ours == dict(released)


@pytest.mark.parametrize('name', RELEASED)
def test_parameter_count(build, name):
    assert sum(p.numel() for p in build(name).parameters()) == load_golden(name)['params']


@pytest.mark.golden
@torch.no_grad()
def test_mask_rcnn_outputs(build):
    model = build('maskrcnn_focalnet_t_1x')
    run, = load_golden('maskrcnn_focalnet_t_1x')['runs']

    def rois(size, seed):
        return torch.randn(4, 256, size, size, generator=torch.Generator().manual_seed(seed))

    pyramid = model.extract_feat(golden_input(run['input']))
    rpn_classes, rpn_boxes = model.rpn_head(pyramid)
    outputs = [
        *pyramid, *rpn_classes, *rpn_boxes,
        *model.roi_head.bbox_head(rois(7, seed=1)),
        model.roi_head.mask_head(rois(14, seed=2)),
    ]
    assert len(outputs) == len(run['outputs'])
    for output, record in zip(outputs, run['outputs'], strict=True):
        assert_close_to_golden(output, record)


@pytest.mark.golden
@torch.no_grad()
def test_upernet_outputs(build):
    model = build('upernet_focalnet_t_160k')
    run, = load_golden('upernet_focalnet_t_160k')['runs']
    image = golden_input(run['input'])
    size = tuple(image.shape[2:])

    logits = model.encode_decode(image, [dict(img_shape=size, pad_shape=size)])
    auxiliary = model.auxiliary_head(model.extract_feat(image))
    for output, record in zip((logits, auxiliary), run['outputs'], strict=True):
        assert_close_to_golden(output, record)
