"""DINO: the published reference point head, and the authors' whole detector."""
import argparse
import copy
import importlib.util
import json
import re
from pathlib import Path

import convert_checkpoint
import numpy as np
import pytest
import torch
from golden_utils import assert_close_to_golden, golden_input, load_golden, rule_value
from mmdet.datasets import CocoDataset
from mmdet.models.layers import coordinate_to_encoding
from mmdet.structures import DetDataSample
from mmengine.config import Config
from mmengine.registry import MODELS
from PIL import Image

from downstream.checkpoints import load_from_file
from downstream.dino import RefPointHead, from_released_dino, keep_coco_classes
from downstream.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / 'configs'


def score(argv):
    """tools/test.py"""
    spec = importlib.util.spec_from_file_location('tools_test', ROOT / 'tools/test.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(argv)


def test_wide_encoding_is_thinned_to_the_narrow_one():
    head = RefPointHead(64)
    boxes = torch.rand(2, 5, 4)
    narrow = coordinate_to_encoding(boxes, num_feats=32)
    wide = coordinate_to_encoding(boxes, num_feats=64)
    assert narrow.shape[-1] == 128 and wide.shape[-1] == 256
    torch.testing.assert_close(head(wide), head(narrow), rtol=0, atol=0)


def released_state(golden, shrink=lambda name, shape: shape):
    return {key: rule_value(golden['alias'].get(key, key), shrink(key, shape))
            for key, shape, _ in golden['keys']}


def narrower(name, shape):
    """The shape of an entry on a FocalNet with an eighth of the channels."""
    def width(n):
        gates = 4 if n > 192 and (n - 4) % 192 == 0 else 0
        return (n - gates) // 8 + gates if (n - gates) % 192 == 0 else n

    if name.startswith('backbone.0.'):
        return [width(n) for n in shape]
    return [*shape[:1], *map(width, shape[1:])] if re.match(r'input_proj\.\d\.0', name) else shape


@pytest.mark.golden
def test_matches_the_release():
    """Logits and boxes of the authors' detector, all 900 queries, with --keep-classes.

    Looser than the other models: the rank of a proposal decides which query it gets, and with these
    weights the scores of a few of the 900 differ by less than float32's rounding. Two that swap
    change all logits by about 2e-4, by way of self-attention; a real mistake changes them by 1e-2.
    """
    golden = load_golden('dino_focalnet_l_fl3_4scale')
    cfg = Config.fromfile(CONFIGS / 'dino_focalnet_l_4scale_12e.py')
    state, rules = convert_checkpoint.convert_model(
        released_state(golden), copy.deepcopy(cfg), argparse.Namespace(
            source='dino.pth', config='cfg', keep_classes=True, allow_partial=False))
    assert rules == ["names of the authors' DINO -> mmdet's"]
    cfg.model.bbox_head.num_classes = 91
    cfg.model.backbone.update(drop_path_rate=0., use_checkpoint=False)
    with torch.device('meta'):
        model = MODELS.build(dict(cfg.model, _scope_='mmdet'))
    model.load_state_dict(state, assign=True)  # all, no more
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


def test_91_classes_become_80():
    """The rows of the classes that mmdet counts from 0 are those of COCO's category ids."""
    ids = dict(person=1, bicycle=2, train=7, boat=9, bench=15, bird=16, backpack=27, umbrella=28,
               handbag=31, tie=32, frisbee=34, bottle=44, cup=47, cake=61, chair=62, bed=65,
               toilet=70, tv=72, laptop=73, sink=81, refrigerator=82, book=84, toothbrush=90)
    ids |= {'stop sign': 13, 'wine glass': 46, 'dining table': 67, 'hair drier': 89}
    rows = torch.arange(92.)
    state = keep_coco_classes(from_released_dino({
        'class_embed.0.bias': rows[:91], 'class_embed.0.weight': rows[:91, None],
        'label_enc.weight': rows[:, None], 'transformer.enc_out_class_embed.bias': rows[:91],
        'transformer.tgt_embed.weight': rows[:91, None]}))
    names = CocoDataset.METAINFO['classes']
    assert state['query_embedding.weight'].shape == (91, 1)  # no classes
    for name in ('bbox_head.cls_branches.0.bias', 'bbox_head.cls_branches.0.weight',
                 'bbox_head.cls_branches.1.bias', 'dn_query_generator.label_embedding.weight'):
        assert state[name].shape[0] == 80
        assert {key: state[name][names.index(key)].item() for key in ids} == ids
        assert state[name].flatten().tolist() == sorted(state[name].flatten().tolist())


@pytest.fixture
def coco80(tmp_path, monkeypatch):
    (tmp_path / 'val2017').mkdir()
    (tmp_path / 'annotations').mkdir()
    Image.fromarray(np.zeros((256, 256, 3), np.uint8)).save(tmp_path / 'val2017/0.jpg')
    (tmp_path / 'annotations/instances_val2017.json').write_text(json.dumps(dict(
        images=[dict(id=0, file_name='0.jpg', width=256, height=256)],
        annotations=[dict(id=1, image_id=0, category_id=1, bbox=[8, 8, 40, 40], area=1600,
                          iscrowd=0)],
        categories=[dict(id=i, name=name)
                    for i, name in enumerate(CocoDataset.METAINFO['classes'])])))
    monkeypatch.setenv('COCO_ROOT', str(tmp_path))
    monkeypatch.setenv('LOCAL_RANK', '0')
    monkeypatch.chdir(tmp_path)
    # Most of a test's time would go into laying out the config for the log.
    monkeypatch.setattr('yapf.yapflib.yapf_api.FormatCode', lambda text, **_: (text, True))


def test_the_released_file_is_scored_and_converted_as_it_is(coco80, capsys):
    """A file of the authors' training code, on a narrow backbone; then what is not its config."""
    state = released_state(load_golden('dino_focalnet_l_fl3_4scale'), narrower)
    torch.save(dict(model={f'module.{name}': value for name, value in state.items()}, epoch=3,
                    optimizer=dict(state={}), args=argparse.Namespace(lr=1e-4)), 'dino.pth')
    base = CONFIGS / 'dino_focalnet_l_4scale_12e.py'
    Path('narrow.py').write_text(f"""_base_ = '{base}'
model = dict(backbone=dict(embed_dim=24), neck=dict(in_channels=[48, 96, 192]))
""")
    options = ['--cfg-options', 'test_dataloader.num_workers=0',
               'test_dataloader.persistent_workers=False',
               'test_dataloader.dataset.pipeline.1.scale=(256,256)']
    score(['narrow.py', 'dino.pth', '--work-dir', 'out', *options])
    log = '\n'.join(path.read_text() for path in Path('out').glob('*/*.log'))
    kept = len(from_released_dino(state))
    assert (f'dino.pth: {kept} of {kept} tensors loaded, 0 of them resized: none\n'
            '  of another shape: none\n  not in the file: none\n  in the file but not used: none\n'
            ) in log
    assert 'bbox_mAP' in log

    convert_checkpoint.main(['dino.pth', 'dino.safetensors', '--config', 'narrow.py'])
    assert "COCO's 80; dropped: epoch, optimizer, args" in capsys.readouterr().out
    converted, direct = load_from_file('dino.safetensors'), load_from_file('dino.pth')
    assert converted['state_dict'].keys() == direct['state_dict'].keys()
    assert all(value.equal(converted['state_dict'][name])
               for name, value in direct['state_dict'].items())

    wrong = [f'{CONFIGS}/dino_focalnet_l_5scale_12e.py', 'dino.pth', *options]
    with pytest.raises(SystemExit, match='The file is DINO with 4 scales on FocalNet .*, the model '
                                         'DINO with 5 scales on FocalNet-L fl4'):
        score(wrong)


def test_names_of_another_model():
    with pytest.raises(UserError, match="fpn.weight is no entry of the authors' DINO"):
        from_released_dino({'fpn.weight': torch.zeros(1)})


def test_images_with_fewer_places_than_queries():
    cfg = Config.fromfile(CONFIGS / 'dino_focalnet_l_4scale_12e.py')
    cfg.model.backbone.update(embed_dim=8, depths=(1, 1, 1, 1), use_checkpoint=False)
    cfg.model.neck.in_channels = [16, 32, 64]
    model = MODELS.build(dict(cfg.model, _scope_='mmdet')).eval()
    sample = DetDataSample(metainfo=dict(img_shape=(128, 128), batch_input_shape=(128, 128)))
    with pytest.raises(ValueError, match="have 340 places .* DINO's 900 queries"):
        model._forward(torch.zeros(1, 3, 128, 128), [sample])
