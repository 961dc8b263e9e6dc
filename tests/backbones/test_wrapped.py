"""Networks of transformers and timm as backbones. Nothing is downloaded."""
import importlib
import json

import pytest
import torch
from mmengine.registry import MODELS
from networks import DEPTHS, SMALL

from backbones import SimplePyramid, from_transformers, wrapped
from backbones.base import Backbone
from backbones.testing import CHECKS, check_backbone, fill_

QUICK = [name for name in CHECKS if name not in ('compiles', 'exports', 'half_precision')]
FEWER = ['any_image_size', 'gradients_reach_all', 'behind_the_last_map', 'freezing']


@pytest.fixture
def transformers():
    return pytest.importorskip('transformers')


def config(name, **kwargs):
    return dict(type='TransformersBackbone', config=dict(model_type=name, **SMALL[name]), **kwargs)


@pytest.mark.parametrize('name', SMALL)
def test_networks_of_transformers_hold_the_contract(name, transformers):
    only = {'dinov2': QUICK, 'convnext': [*QUICK, 'exports']}.get(name, FEWER)
    report = check_backbone(config(name), only=only)
    report.require()
    isotropic = name == 'dinov2'
    assert report.strides == ((16, ) * 4 if isotropic else (4, 8, 16, 32))


def test_patches_of_14_give_a_stride_of_16(transformers):
    """What lies at a place of the image lies at that place of the map."""
    net = fill_(MODELS.build(config('dinov2'))).eval()
    x = torch.randn(1, 3, 160, 320)
    changed = x.clone()
    changed[..., 96:128, 256:288] += 3  # rows 6, 7 and columns 16, 17 of 16
    with torch.no_grad():
        change = (net(x)[0] - net(changed)[0]).abs().mean((0, 1))
    assert change.shape == (10, 20)
    most = change.flatten().topk(4).indices
    assert {(i // 20, i % 20) for i in most.tolist()} == {(6, 16), (6, 17), (7, 16), (7, 17)}


def test_weights_come_from_a_folder(transformers, tmp_path):
    source = fill_(MODELS.build(config('convnext')))
    source.net.save_pretrained(tmp_path)
    net = MODELS.build(config('convnext', pretrained=str(tmp_path), frozen_stages=1))
    net.init_weights()
    for key, value in source.state_dict().items():
        assert value.equal(net.state_dict()[key]), key
    other = MODELS.build(config('resnet', pretrained=str(tmp_path)))
    with pytest.raises(ValueError, match='fills .* another model|cannot be had'):
        other.init_weights()
    torch.save(source.net.state_dict(), tmp_path / 'bare.pth')  # under the library's names
    bare = MODELS.build(config('convnext', init_cfg=dict(
        type='Pretrained', checkpoint=str(tmp_path / 'bare.pth'))))
    bare.init_weights()
    for key, value in source.state_dict().items():
        assert value.equal(bare.state_dict()[key]), key


def test_what_cannot_be_had_is_one_message(transformers, monkeypatch, tmp_path):
    monkeypatch.setattr(transformers.PreTrainedConfig, 'get_config_dict',
                        lambda name: (_ for _ in ()).throw(OSError('offline')))
    with pytest.raises(ValueError, match='no/name cannot be had: offline .* give a folder'):
        from_transformers.read_config('no/name')
    monkeypatch.undo()
    for entries, words in ((dict(model_type='vit'), "no backbone of the type 'vit'.*vitdet"),
                           (dict(model_type='convnext', depths=3), 'cannot (make|be read)'),
                           (dict(), 'no backbone of the type None')):
        with pytest.raises(ValueError, match=words):
            MODELS.build(dict(type='TransformersBackbone', config=entries))
    (tmp_path / 'config.json').write_text('{')
    with pytest.raises(ValueError, match='cannot be had'):
        from_transformers.read_config(str(tmp_path))
    with pytest.raises(ValueError, match='cannot take images of 448 x 896'):
        MODELS.build(dict(type='TransformersBackbone', config=dict(
            model_type='hiera', embed_dim=16, depths=DEPTHS, num_heads=[1, 1, 2, 4],
            image_size=[64, 64])))
    with pytest.raises(ValueError, match='has no stochastic depth'):
        MODELS.build(config('resnet', drop_path_rate=0.1))
    with pytest.raises(ValueError, match='pretrained=True takes the weights that lie beside'):
        MODELS.build(config('resnet', pretrained=True))


@pytest.mark.parametrize('kind, argument', [('TransformersBackbone', 'config'),
                                            ('TimmBackbone', 'name')])
def test_a_missing_package_is_one_message(kind, argument, monkeypatch):
    def missing(name):
        raise ImportError(f'No module named {name!r}')
    monkeypatch.setattr(importlib, 'import_module', missing)
    with pytest.raises(ValueError, match=f'{kind} needs the package .*pip install'):
        MODELS.get(kind)(**{argument: 'convnext_tiny'})


def test_a_config_is_said_in_full(transformers, tmp_path):
    """Built from its entries a network is the same as from the file."""
    (tmp_path / 'config.json').write_text(json.dumps(dict(
        model_type='dinov2', id2label={'0': 'cat'}, **SMALL['dinov2'])))
    there = from_transformers.read_config(str(tmp_path))
    entries = from_transformers.as_entries(there)
    assert 'id2label' not in entries and entries['patch_size'] == 14
    assert from_transformers.read_config(entries).to_dict() == there.to_dict()
    assert not from_transformers.has_weights(str(tmp_path))
    assert from_transformers.normalisation(str(tmp_path)) == {}


def test_stages_and_their_surroundings():
    net = torch.nn.Module()
    net.stem, net.head = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    net.body = torch.nn.Module()
    net.body.token = torch.nn.Parameter(torch.zeros(1))
    net.body.blocks = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(3))
    net.body.norm = torch.nn.LayerNorm(2)
    assert wrapped.stages_in(net, [3]) == 'body.blocks' and wrapped.stages_in(net, [4]) is None
    before, behind = wrapped.around(net, 'body.blocks')
    assert before == ['stem', 'head', 'body.token'] and behind == ['body.norm']
    assert wrapped.default_indices([16] * 12) == [2, 5, 8, 11]
    assert wrapped.default_indices([4, 8, 16, 16, 32]) == [0, 1, 3, 4]


def test_the_pyramid_has_any_scale_and_rounds_up():
    maps = [torch.randn(2, 8, 5, 7)] * 4
    outs = SimplePyramid(8, (4, 2, 1, 0.5))(maps)
    assert [tuple(out.shape[2:]) for out in outs] == [(20, 28), (10, 14), (5, 7), (3, 4)]
    assert [tuple(out.shape[2:]) for out in SimplePyramid(8, (1, 0.25))(maps[:1])] == [
        (5, 7), (2, 2)]
    with pytest.raises(ValueError, match='powers of two'):
        SimplePyramid(8, (3, 1))


class Careless(Backbone):
    """Breaks the contract in ways that a check is for."""

    def __init__(self, frozen_stages=-1):
        super().__init__()
        self.conv, self.idle = torch.nn.Conv2d(3, 4, 4, 4), torch.nn.Linear(2, 2)

    def forward(self, x):
        return (self.conv(x) + torch.rand(1, device=x.device), )


def test_what_a_backbone_does_wrong_is_reported():
    report = check_backbone(Careless())
    why = {row.check: row.why for row in report.failed}
    assert 'map 0 of images of 75 x 101 is (2, 4, 18, 25), not (2, 4, 19, 26)' in (
        why['any_image_size'])
    assert 'idle.weight gets no gradient' in why['gradients_reach_all']
    assert 'something else each time' in why['modes_and_determinism']
    table = str(report)
    assert 'freezing' in table and 'can be set where a config is given' in ' '.join(table.split())
    with pytest.raises(AssertionError, match='idle.weight'):
        report.require()
    frozen = check_backbone(lambda **kwargs: Careless(**kwargs), only=['freezing'])
    assert 'left to train, step by step' in frozen.failed[0].why
    with pytest.raises(ValueError, match='no check speed'):
        check_backbone(Careless(), only=['speed'])


# -- timm --------------------------------------------------------------------------------------

@pytest.fixture
def timm():
    try:
        return importlib.import_module('timm')
    except Exception as error:  # without torchvision, or with another torch's
        pytest.skip(f'timm cannot be imported: {error}')


@pytest.mark.parametrize('name, args, strides', [
    ('convnext_atto', {}, (4, 8, 16, 32)),
    ('resnet10t', {}, (4, 8, 16, 32)),
    ('swin_tiny_patch4_window7_224', dict(embed_dim=24, depths=(2, 1, 1, 1),
                                          num_heads=(1, 2, 2, 4)), (4, 8, 16, 32)),
    ('vit_tiny_patch16_224', dict(embed_dim=24, depth=4), (16, 16, 16, 16)),
    ('vit_small_patch14_dinov2', dict(embed_dim=24, depth=4, num_heads=2), (16, 16, 16, 16)),
])
def test_networks_of_timm_hold_the_contract(name, args, strides, timm):
    report = check_backbone(dict(type='TimmBackbone', name=name, model_args=args), only=QUICK)
    report.require()
    assert report.strides == strides


def test_timm_says_what_is_wrong(timm, tmp_path):
    with pytest.raises(ValueError, match='no network .convnext_tini.*convnext_tiny'):
        MODELS.build(dict(type='TimmBackbone', name='convnext_tini'))
    with pytest.raises(ValueError, match='no weights .convnext_tiny.in99k'):
        MODELS.build(dict(type='TimmBackbone', name='convnext_tiny.in99k'))
    with pytest.raises(ValueError, match='cannot take images of 448 x 896'):
        MODELS.build(dict(type='TimmBackbone', name='mixer_s32_224'))
    with pytest.raises(ValueError, match='stages begin and end is not known'):
        MODELS.build(dict(type='TimmBackbone', name='mobilenetv3_small_050', frozen_stages=1))
    torch.save(timm.create_model('convnext_atto').state_dict(), tmp_path / 'w.pth')
    net = MODELS.build(dict(type='TimmBackbone', name='convnext_atto',
                            pretrained=str(tmp_path / 'w.pth')))
    net.init_weights()
    weights = torch.load(tmp_path / 'w.pth', weights_only=True)
    assert net.net.state_dict()['stem_0.weight'].equal(weights['stem.0.weight'])
    assert net.normalisation['bgr_to_rgb'] and len(net.normalisation['mean']) == 3
