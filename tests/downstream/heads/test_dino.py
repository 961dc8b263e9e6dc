"""DINO: the published reference point head, and the authors' whole detector."""
import argparse
import copy
import functools
import json
import logging
import re
from pathlib import Path
from types import SimpleNamespace

import convert_checkpoint
import numpy as np
import pytest
import torch
from commands import command
from golden_utils import assert_close_to_golden, golden_input, load_golden, rule_value
from mmdet.datasets import CocoDataset
from mmdet.models.layers import MLP, coordinate_to_encoding
from mmdet.structures import DetDataSample
from mmengine.config import Config
from mmengine.registry import MODELS
from PIL import Image
from torch.overrides import TorchFunctionMode

from downstream.errors import UserError
from downstream.heads.dino import (
    DETREX,
    EXPERIMENTS,
    RELEASE,
    RefPointHead,
    from_origin,
    keep_coco_classes,
    recorded_variant,
    variant_of,
)
from downstream.training.checkpoints import CheckFits, kind_of_model, load_from_file
from downstream.training.converting import convert_model

ROOT = Path(__file__).resolve().parents[3]
CONFIGS = ROOT / 'configs'


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


class RecordedChoice(TorchFunctionMode):
    """Gives DINO's queries the places that they had in the recorded run, in that order.

    Scores of some of the 900 places differ by less than float32's rounding: the number of threads
    and the instruction set decide which comes first, and so which query it gets.
    """

    def __init__(self, proposals):
        super().__init__()
        self.proposals = torch.tensor([proposals])
        self.scores = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func is not torch.topk:
            return out
        self.scores.append(args[0])
        return out[0], self.proposals

    def assert_chosen_here_too(self):
        """The recorded places have the highest scores, but for what is as good as tied."""
        (scores, ), = self.scores
        chosen = scores[self.proposals[0]]
        assert (chosen.diff() < 1e-4).all(), f'out of order by {chosen.diff().max():.2e}'
        rest = scores.clone()
        rest[self.proposals[0]] = -torch.inf
        assert rest.max() < chosen[-1] + 1e-4


class Recorded:
    """A golden DINO: the experiment's model with the recorded weights, and what it should give."""

    def __init__(self, name, config, keep_classes):
        golden = load_golden(name)
        cfg = Config.fromfile(CONFIGS / f'{config}.py')
        self.meta = {}
        state, self.rules = convert_model(
            released_state(golden), copy.deepcopy(cfg), argparse.Namespace(
                source='dino.pth', config='cfg', keep_classes=keep_classes, allow_partial=False),
            self.meta)
        if keep_classes:
            cfg.model.bbox_head.num_classes = 91
        cfg.model.backbone.update(drop_path_rate=0., use_checkpoint=False)
        with torch.device('meta'):
            self.model = MODELS.build(dict(cfg.model, _scope_='mmdet'))
        self.model.load_state_dict(state, assign=True)  # all, no more
        self.model.eval()
        self.run, = golden['runs']
        x = golden_input(self.run['input'])
        self.sample = DetDataSample(metainfo=dict(
            img_shape=x.shape[2:], batch_input_shape=tuple(x.shape[2:])))
        with torch.no_grad():
            self.maps = self.model.extract_feat(x)

    def check(self):
        """From the neck's maps on: the places, then logits and boxes of the last layer."""
        choice = RecordedChoice(self.run['proposals'])
        with torch.no_grad(), choice:
            outputs = self.model.bbox_head(
                **self.model.forward_transformer(self.maps, [self.sample]))
        choice.assert_chosen_here_too()
        for output, record in zip(outputs, self.run['outputs'], strict=True):
            assert_close_to_golden(output[-1], record)


@pytest.fixture(scope='module')
def released():
    return Recorded('dino_focalnet_l_fl3_4scale', 'dino_focalnet_l_4scale_12e', keep_classes=True)


@pytest.mark.golden
def test_matches_the_release(released):
    """Logits and boxes of the authors' detector, all 900 queries, with --keep-classes."""
    assert released.rules == ["names of the authors' DINO -> mmdet's"]
    assert released.meta == {'dino': dict(temperature=20, offset=0.)}
    released.check()
    # The release counts a row of the label embedding that mmdet does not have.
    golden = load_golden('dino_focalnet_l_fl3_4scale')
    assert sum(p.numel() for p in released.model.parameters()) + 256 == golden['params']


@pytest.mark.golden
def test_matches_detrex():
    """The neck's maps, logits and boxes of detrex's detector."""
    detrex = Recorded('detrex_dino_focalnet_l_fl3_4scale', 'dino_focalnet_l_4scale_12e_detrex',
                      keep_classes=False)
    assert detrex.rules == ["names of detrex -> mmdet's"]
    for tensor, record in zip(detrex.maps, detrex.run['neck'], strict=True):
        assert_close_to_golden(tensor, record)
    detrex.check()


def another_epsilon(model, monkeypatch):
    monkeypatch.setattr(model.decoder.norm, 'eps', 1e-3)


def swapped_levels(model, monkeypatch):
    monkeypatch.setitem(model._parameters, 'level_embed', model.level_embed[[1, 0, 2, 3]])


def wide_encoding(model, monkeypatch):
    """The first half of the wide encoding's frequencies, not every second one."""
    head = model.decoder.ref_point_head
    monkeypatch.setattr(head, 'forward', lambda encoding: MLP.forward(
        head, encoding.unflatten(-1, (4, -1))[..., :head.in_features // 4].flatten(-2)))


def doubled_layer(model, monkeypatch):
    layer = model.decoder.layers[3].ffn.layers[1]
    monkeypatch.setitem(layer._parameters, 'weight', 2 * layer.weight)


def another_temperature(model, monkeypatch):
    monkeypatch.setattr(model.positional_encoding, 'temperature', 10000)


@pytest.mark.parametrize('mistake', [
    another_epsilon, swapped_levels, wide_encoding, doubled_layer, another_temperature])
def test_a_mistake_is_noticed(released, monkeypatch, mistake):
    """What makes the comparison independent of ties does not make it blind."""
    mistake(released.model, monkeypatch)
    with pytest.raises(AssertionError, match='off by|out of order'):
        released.check()


def test_91_classes_become_80():
    """The rows of the classes that mmdet counts from 0 are those of COCO's category ids."""
    ids = dict(person=1, bicycle=2, train=7, boat=9, bench=15, bird=16, backpack=27, umbrella=28,
               handbag=31, tie=32, frisbee=34, bottle=44, cup=47, cake=61, chair=62, bed=65,
               toilet=70, tv=72, laptop=73, sink=81, refrigerator=82, book=84, toothbrush=90)
    ids |= {'stop sign': 13, 'wine glass': 46, 'dining table': 67, 'hair drier': 89}
    rows = torch.arange(92.)
    state = keep_coco_classes(from_origin({
        'class_embed.0.bias': rows[:91], 'class_embed.0.weight': rows[:91, None],
        'label_enc.weight': rows[:, None], 'transformer.enc_out_class_embed.bias': rows[:91],
        'transformer.tgt_embed.weight': rows[:91, None]}, RELEASE))
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
    command('test').main(['narrow.py', 'dino.pth', '--work-dir', 'out', *options])
    log = '\n'.join(path.read_text() for path in Path('out').glob('*/*.log'))
    kept = len(from_origin(state, RELEASE))
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
        command('test').main(wrong)


def test_a_file_of_detrex_is_read_as_it_is(tmp_path):
    """Its names, straight from its training code, and converted to both formats."""
    golden = load_golden('detrex_dino_focalnet_l_fl3_4scale')
    state = {name: rule_value(golden['alias'].get(name, name), [min(n, 4) for n in shape])
             for name, shape, _ in golden['keys']}  # small: names are what matters
    torch.save(dict(model=state, iteration=89999), tmp_path / 'detrex.pth')
    read = load_from_file(tmp_path / 'detrex.pth')
    assert read['meta'] == {'dino': DETREX.variant}
    assert len(read['state_dict']) == len(state) - len(golden['alias'])
    for name in ('converted.pth', 'converted.safetensors'):
        convert_checkpoint.main([str(tmp_path / 'detrex.pth'), str(tmp_path / name)])
        converted = load_from_file(tmp_path / name)
        assert recorded_variant(converted['meta']) == DETREX.variant
        assert converted['state_dict'].keys() == read['state_dict'].keys()
        assert all(value.equal(converted['state_dict'][key])
                   for key, value in read['state_dict'].items())


@pytest.fixture(scope='module')
def experiment():
    """Builds an experiment's model, without storage, once."""
    @functools.cache
    def build(name):
        cfg = Config.fromfile(CONFIGS / f'{name}.py')
        with torch.device('meta'):
            return MODELS.build(dict(cfg.model, _scope_='mmdet'))

    return build


def file_of(model, meta, equal=True):
    """A checkpoint for a model: zeros, but for the biases of the class layers."""
    state = {name: torch.zeros(1).expand(value.shape) for name, value in model.state_dict().items()}
    for i in range(6):
        state[f'bbox_head.cls_branches.{i}.bias'] = torch.full((80,), 0. if equal else float(i))
    return dict(state_dict=state, meta=dict(meta, cfg=''), optimizer={}, message_hub={})


def load(model, checkpoint, **how):
    runner = SimpleNamespace(model=model, logger=logging.getLogger('test'))
    CheckFits('file.pth', **how).after_load_checkpoint(runner, checkpoint)


def test_prediction_layers(experiment):
    """The authors' share one of each in the decoder; the state dict has it six times."""
    for name, distinct in (('dino_focalnet_l_4scale_12e', 2),
                           ('dino_focalnet_l_4scale_12e_detrex', 7)):
        head = experiment(name).bbox_head
        for branches in (head.cls_branches, head.reg_branches):
            assert len(branches) == 7 and len(set(branches)) == distinct
            assert branches[6] not in list(branches)[:6]
    released, detrex = (experiment(name) for name in (
        'dino_focalnet_l_4scale_12e', 'dino_focalnet_l_4scale_12e_detrex'))
    assert released.state_dict().keys() == detrex.state_dict().keys()


def test_separate_prediction_layers_are_not_taken_for_shared_ones(experiment):
    released, detrex = (experiment(f'dino_focalnet_l_5scale_12e{end}') for end in ('', '_detrex'))
    for how in (dict(), dict(resume=True), dict(whole=False), dict(allow_partial=True)):
        with pytest.raises(UserError, match='several in the file(.|\n)*Its config is configs/'
                                            'dino_focalnet_l_5scale_12e_detrex.py. $'):
            load(released, file_of(released, {}, equal=False), **how)
        load(released, file_of(released, {}), **how)  # copies of one: the authors' own files
        load(detrex, file_of(detrex, {}, equal=False), **how)


def test_what_no_tensor_shows_is_recorded_and_compared(experiment):
    """Position encoding, the modulator's normalisation; shared layers, to train on."""
    released, detrex = (experiment(f'dino_focalnet_l_5scale_12e{end}') for end in ('', '_detrex'))
    kept = {}
    for name, model in (('released', released), ('detrex', detrex)):
        kept[name] = dict(meta={})
        CheckFits('').before_save_checkpoint(SimpleNamespace(model=model), kept[name])
        kept[name] = kept[name]['meta']
        load(model, file_of(model, kept[name]), resume=True)
    assert kept == dict(
        released=dict(dino=dict(prediction_layers='shared', temperature=20, offset=0.,
                                normalize_modulator=True)),
        detrex=dict(dino=dict(prediction_layers='separate', temperature=10000, offset=-0.5,
                              normalize_modulator=False)))

    with pytest.raises(UserError, match=r'temperature: 20 in the file, 10000 in the model\n'
                                        r'  offset: 0.0 .*, -0.5 .*\n'
                                        r'(.|\n)*dino_focalnet_l_5scale_12e.py'):
        load(detrex, file_of(detrex, dict(dino=RELEASE.variant)))
    with pytest.raises(UserError, match='normalize modulator: False in the file, True in the model'
                                        '(.|\n)*dino_focalnet_l_5scale_12e_detrex.py'):
        load(released, file_of(released, dict(dino=json.dumps(DETREX.variant))))  # .safetensors'
    load(released, file_of(released, dict(dino=DETREX.variant)), whole=False, allow_partial=True)

    same = dict(kept['detrex']['dino'], prediction_layers='shared')
    load(detrex, file_of(detrex, dict(dino=same)))  # a test gives the same numbers
    with pytest.raises(UserError, match='prediction layers: shared in the file, separate in the'):
        load(detrex, file_of(detrex, dict(dino=same)), resume=True)


@pytest.mark.parametrize('golden, wrong, right', [
    ('detrex_dino_focalnet_l_fl3_4scale', 'dino_focalnet_l_4scale_12e',
     'dino_focalnet_l_4scale_12e_detrex'),
    ('dino_focalnet_l_fl3_4scale', 'dino_focalnet_l_4scale_12e_detrex',
     'dino_focalnet_l_4scale_12e')])
def test_published_files_under_each_others_config(experiment, tmp_path, golden, wrong, right):
    """As they are downloaded: their own names tell whose they are."""
    state = {name: torch.zeros(1).expand(shape) for name, shape, *_ in load_golden(golden)['keys']}
    torch.save(dict(model=state), tmp_path / 'dino.pth')
    load(experiment(right), load_from_file(tmp_path / 'dino.pth'))
    with pytest.raises(UserError, match=rf'temperature: \d+ in the file(.|\n)*configs/{right}.py'):
        load(experiment(wrong), load_from_file(tmp_path / 'dino.pth'))


def test_experiments_of_published_files_exist(experiment):
    for kind, names in EXPERIMENTS.items():
        for name in filter(None, names):
            model = experiment(name)
            assert kind_of_model(model.state_dict()).startswith(kind)
            origin = DETREX if name.endswith('_detrex') else RELEASE
            assert origin.variant.items() <= variant_of(model).items()


def test_names_of_another_model():
    with pytest.raises(UserError, match="fpn.weight is no entry .* the authors' DINO"):
        from_origin({'fpn.weight': torch.zeros(1)}, RELEASE)


def test_images_with_fewer_places_than_queries():
    cfg = Config.fromfile(CONFIGS / 'dino_focalnet_l_4scale_12e.py')
    cfg.model.backbone.update(embed_dim=8, depths=(1, 1, 1, 1), use_checkpoint=False)
    cfg.model.neck.in_channels = [16, 32, 64]
    model = MODELS.build(dict(cfg.model, _scope_='mmdet')).eval()
    sample = DetDataSample(metainfo=dict(img_shape=(128, 128), batch_input_shape=(128, 128)))
    with pytest.raises(ValueError, match="have 340 places .* DINO's 900 queries"):
        model._forward(torch.zeros(1, 3, 128, 128), [sample])
