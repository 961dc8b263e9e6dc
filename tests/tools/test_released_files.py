"""Whole detectors and segmentors as mmdet 2.x and mmseg 0.x saved them, through tools/test.py.

The files are stand-ins: the released names and shapes, weights that follow from the names. Mask
R-CNN's and UPerNet's names were recorded from the release; the other heads' are written down here
as mmdet 2.x has them, independently of the models that are built.
"""
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import command
from golden_utils import load_golden, rule_value
from mmdet.datasets import CocoDataset
from mmengine.config import Config
from mmengine.registry import MODELS
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
RECORDED = {name.split('_')[0]: dict(entries)
            for name, entries in load_golden('released_detector_keys').items()}


def affine(name, out, *inputs, bias=True):
    """A linear layer or, with four dimensions, a convolution."""
    return {f'{name}.weight': [out, *inputs], **({f'{name}.bias': [out]} if bias else {})}


def norm(name, width):
    return {f'{name}.weight': [width], f'{name}.bias': [width]}


def batch_norm(name, width):
    return {**norm(name, width), f'{name}.running_mean': [width], f'{name}.running_var': [width],
            f'{name}.num_batches_tracked': []}


def taken(prefix, state):
    return {name: shape for name, shape in state.items() if name.startswith(prefix)}


def backbone(first_kernels):
    """FocalNet-T with other kernels."""
    state = taken('backbone.', RECORDED['maskrcnn'])
    for name in state:
        found = re.search(r'layers\.(\d)\..*focal_layers\.(\d)', name)
        if found:
            kernel = first_kernels[int(found[1])] + 2 * int(found[2])
            state[name] = [*state[name][:2], kernel, kernel]
    return state


def cascade():
    state = {**backbone([11, 9, 9, 7]), **taken('neck.', RECORDED['maskrcnn']),
             **taken('rpn_head.', RECORDED['maskrcnn'])}
    for stage in range(3):
        box, mask = f'roi_head.bbox_head.{stage}', f'roi_head.mask_head.{stage}'
        state |= affine(f'{box}.fc_cls', 81, 1024) | affine(f'{box}.fc_reg', 320, 1024)
        state |= affine(f'{box}.shared_fcs.0', 1024, 256 * 49)
        for i in range(4):
            state |= affine(f'{box}.shared_convs.{i}.conv', 256, 256, 3, 3, bias=False)
            state |= batch_norm(f'{box}.shared_convs.{i}.bn', 256)
            state |= affine(f'{mask}.convs.{i}.conv', 256, 256, 3, 3)
        state |= affine(f'{mask}.upsample', 256, 256, 2, 2)
        state |= affine(f'{mask}.conv_logits', 80, 256, 1, 1)
    return state


def atss():
    state = {name: shape for name, shape in backbone([11, 9, 9, 7]).items()
             if not name.startswith('backbone.norm0')}
    for i, width in enumerate((192, 384, 768)):
        state |= affine(f'neck.lateral_convs.{i}.conv', 256, width, 1, 1)
    for i in range(5):
        state |= affine(f'neck.fpn_convs.{i}.conv', 256, 256, 3, 3)
        state[f'bbox_head.scales.{i}.scale'] = []
    for branch in ('cls', 'reg'):
        for i in range(4):
            state |= affine(f'bbox_head.{branch}_convs.{i}.conv', 256, 256, 3, 3, bias=False)
            state |= norm(f'bbox_head.{branch}_convs.{i}.gn', 256)
    for name, out in (('cls', 80), ('reg', 4), ('centerness', 1)):
        state |= affine(f'bbox_head.atss_{name}', out, 256, 3, 3)
    return state


def sparse_rcnn():
    state = backbone([11, 9, 9, 7])
    for i, width in enumerate((96, 192, 384, 768)):
        state |= affine(f'neck.lateral_convs.{i}.conv', 256, width, 1, 1)
        state |= affine(f'neck.fpn_convs.{i}.conv', 256, 256, 3, 3)
    state |= {'rpn_head.init_proposal_bboxes.weight': [300, 4],
              'rpn_head.init_proposal_features.weight': [300, 256]}
    for stage in range(6):
        head = f'roi_head.bbox_head.{stage}'
        conv = f'{head}.instance_interactive_conv'
        state |= {f'{head}.attention.attn.in_proj_weight': [768, 256],
                  f'{head}.attention.attn.in_proj_bias': [768]}
        state |= affine(f'{head}.attention.attn.out_proj', 256, 256)
        state |= affine(f'{conv}.dynamic_layer', 2 * 256 * 64, 256)
        state |= norm(f'{conv}.norm_in', 64) | norm(f'{conv}.norm_out', 256)
        state |= affine(f'{conv}.fc_layer', 256, 256 * 49) | norm(f'{conv}.fc_norm', 256)
        state |= affine(f'{head}.ffn.layers.0.0', 2048, 256)
        state |= affine(f'{head}.ffn.layers.1', 256, 2048)
        for name in ('attention_norm', 'instance_interactive_conv_norm', 'ffn_norm'):
            state |= norm(f'{head}.{name}', 256)
        for branch, depth, out in (('cls', 1, 80), ('reg', 3, 4)):
            for i in range(depth):  # linear, norm, ReLU
                state |= affine(f'{head}.{branch}_fcs.{3 * i}', 256, 256, bias=False)
                state |= norm(f'{head}.{branch}_fcs.{3 * i + 1}', 256)
            state |= affine(f'{head}.fc_{branch}', out, 256)
    return state


RELEASED = {
    'maskrcnn_focalnet_t_3x': lambda: RECORDED['maskrcnn'],
    'upernet_focalnet_t_160k': lambda: RECORDED['upernet'],
    'cascade_maskrcnn_focalnet_t_3x': cascade,
    'atss_focalnet_t_3x': atss,
    'sparsercnn_focalnet_t_3x': sparse_rcnn,
}


@pytest.fixture
def data(tmp_path, monkeypatch):
    """One image of each data set, under the official names, with COCO's 80 classes."""
    coco, ade = tmp_path / 'coco', tmp_path / 'ade'
    for folder in (coco / 'val2017', coco / 'annotations', ade / 'images/validation',
                   ade / 'annotations/validation'):
        folder.mkdir(parents=True)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8))
    image.save(coco / 'val2017/0.jpg')
    image.save(ade / 'images/validation/0.jpg')
    Image.fromarray(np.full((64, 64), 3, np.uint8)).save(ade / 'annotations/validation/0.png')
    names = CocoDataset.METAINFO['classes']
    (coco / 'annotations/instances_val2017.json').write_text(json.dumps(dict(
        images=[dict(id=0, file_name='0.jpg', width=64, height=64)],
        annotations=[dict(id=1, image_id=0, category_id=1, bbox=[8, 8, 40, 40], area=1600,
                          segmentation=[[8, 8, 48, 8, 48, 48, 8, 48]], iscrowd=0)],
        categories=[dict(id=i, name=name) for i, name in enumerate(names)])))
    monkeypatch.setenv('COCO_ROOT', str(coco))
    monkeypatch.setenv('ADE20K_ROOT', str(ade))
    monkeypatch.setenv('LOCAL_RANK', '0')
    monkeypatch.chdir(tmp_path)
    # Most of a test's time would go into laying out the config for the log, and into initial
    # weights.
    monkeypatch.setattr('mmengine.model.BaseModule.init_weights', lambda self: None)
    monkeypatch.setattr('yapf.yapflib.yapf_api.FormatCode', lambda text, **_: (text, True))


@pytest.mark.parametrize('name', RELEASED)
def test_score_a_released_file(name, data):
    """Every entry of the file is used, none of the model's is missing."""
    released = RELEASED[name]()
    cfg = Config.fromfile(ROOT / 'configs' / f'{name}.py')
    with torch.device('meta'):
        model = MODELS.build(dict(cfg.model, _scope_=cfg.default_scope))
    assert released == {key: list(value.shape) for key, value in model.state_dict().items()}

    state = {key: torch.tensor(0) if key.endswith('tracked') else rule_value(key, shape)
             for key, shape in released.items()}
    if name.startswith('sparse'):  # centre, width and height of a box
        state['rpn_head.init_proposal_bboxes.weight'][:] = 0.5
    torch.save(dict(meta=dict(mmdet_version='2.11.0', CLASSES=('a', 'b'), config='model = dict()',
                              PALETTE=np.zeros((2, 3), np.uint8)), state_dict=state), 'w.pth')
    command('test').main([
        f'{ROOT}/configs/{name}.py', 'w.pth', '--work-dir', 'out', '--cfg-options',
        'test_dataloader.num_workers=0', 'test_dataloader.persistent_workers=False',
        'test_dataloader.dataset.pipeline.1.scale=(64,64)'])
    log = '\n'.join(path.read_text() for path in Path('out').glob('*/*.log'))
    assert (f'w.pth: {len(state)} of {len(state)} tensors loaded, 0 of them resized: none\n'
            '  of another shape: none\n  not in the file: none\n  in the file but not used: none\n'
            ) in log
    assert 'mIoU' in log if name.startswith('upernet') else 'bbox_mAP' in log


def test_number_of_parameters():
    """As the authors print them (papers' tables)."""
    for name, millions in (('cascade_maskrcnn_focalnet_t_3x', 87.10), ('atss_focalnet_t_3x', 37.21),
                           ('sparsercnn_focalnet_t_3x', 111.22)):
        entries = RELEASED[name]()
        size = sum(int(np.prod(shape)) for key, shape in entries.items()
                   if not re.search('running_|num_batches', key))
        assert size / 1e6 == pytest.approx(millions, abs=0.01)
