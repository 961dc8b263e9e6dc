"""What a detection framework asks of any backbone, asked of every family."""
import pytest
import torch
from golden_utils import fill_

import backbones
from backbones.testing import CHECKS, NotChecked, Subject, images, loss_of
from backbones.wrapped import Wrapped

# Two small stages (or three small blocks) with as much switched on as fits in: constructor,
# arguments, channels and strides of the outputs, number of freezable parts.
LOCAL = dict(embed_dim=16, depth=3, out_indices=(0, 2), mlp_ratio=2)
FAMILIES = {
    'FocalNet': (dict(
        embed_dim=8, depths=(1, 2), focal_levels=(2, 1), focal_windows=(5, 3), out_indices=(0, 1),
        use_conv_embed=True, use_layerscale=True, layerscale_value=0.5), (8, 16), (4, 8), 2),
    'Container': (dict(
        embed_dims=(8, 16, 16, 16), depths=(1, 1, 1, 1), num_heads=2, mlp_ratios=(2, 2, 2, 2),
        affinity=('static', 'mixed', 'dynamic', 'mlp'), patch_sizes=(4, 2, 1, 1), img_size=64,
        out_indices=(0, 1, 2, 3)), (8, 16, 16, 16), (4, 8, 8, 8), 4),
    'LocalViT': (dict(LOCAL, img_size=64, num_heads=2, reduction=8), (16, 16), (16, 16), 3),
    'LocalViTPVT': (dict(
        img_size=64, embed_dims=(8, 16), depths=(1, 2), num_heads=(1, 2), mlp_ratios=(2, 2),
        sr_ratios=(4, 1), out_indices=(0, 1)), (8, 16), (4, 8), 2),
    'LocalViTSwin': (dict(
        embed_dim=8, depths=(2, 2), num_heads=(1, 2), window_size=4, mlp_ratio=2,
        out_indices=(0, 1)), (8, 16), (4, 8), 2),
    'LocalViTTNT': (dict(LOCAL, img_size=64, in_dim=4, num_heads=2, in_num_heads=2, reduction=8),
                    (16, 16), (16, 16), 3),
    'LocalViTT2T': (dict(LOCAL, img_size=64, token_dim=8, num_heads=2, reduction=8,
                         token_drop_rate=0.), (16, 16), (16, 16), 3),
}


def build(name, **kwargs):
    torch.manual_seed(0)
    return getattr(backbones, name)(**{**FAMILIES[name][0], 'drop_path_rate': 0., **kwargs})


every_family = pytest.mark.parametrize('name', FAMILIES)


def test_every_registered_backbone_is_asked():
    families = {name for name in backbones.__all__
                if issubclass(cls := getattr(backbones, name), backbones.base.Backbone)
                and not issubclass(cls, Wrapped)}
    assert families == set(FAMILIES)


@every_family
@pytest.mark.parametrize('check', CHECKS.values(), ids=CHECKS)
def test_contract(name, check):
    _, channels, strides, parts = FAMILIES[name]
    try:
        check(Subject(lambda **kwargs: build(name, **kwargs), channels, strides, parts))
    except NotChecked as reason:
        pytest.skip(str(reason))


@every_family
def test_checkpointing_drops_the_same_paths(name):
    CHECKS['checkpointing'](Subject(
        lambda **kwargs: build(name, **{**kwargs, 'drop_path_rate': 0.5})))


@every_family
def test_a_kept_graph_is_recomputed_again(name):
    model = fill_(build(name, use_checkpoint=True)).train()
    loss = sum(features.square().mean() for features in model(images()))
    weights = [p for p in model.parameters() if p.requires_grad]
    first = torch.autograd.grad(loss, weights, retain_graph=True)
    for one, other in zip(first, torch.autograd.grad(loss, weights), strict=True):
        torch.testing.assert_close(one, other)


@every_family
def test_behind_frozen_parts_nothing_moves(name):
    """The first map's whole way is frozen, in eval mode."""
    model, x = fill_(build(name, frozen_stages=1, drop_path_rate=0.1)).train(), images()
    first = model(x)[0]
    loss_of(model(x)).backward()
    torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.).step()
    torch.testing.assert_close(model(x)[0], first)


@every_family
def test_published_weights_load(name, tmp_path):
    source = fill_(build(name))
    state = {f'module.{key}': value for key, value in source.state_dict().items()}
    torch.save({'model': {**state, 'module.head.weight': torch.zeros(3, 3)}}, tmp_path / 'w.pth')
    model = build(name, init_cfg=dict(type='Pretrained', checkpoint=str(tmp_path / 'w.pth')))
    model.init_weights()
    for key, value in model.state_dict().items():
        assert value.equal(source.state_dict()[key]), key


@every_family
@pytest.mark.parametrize('argument, message', [
    (dict(out_indices=(0, 7)), 'out_indices must be'),
    (dict(out_indices=()), 'out_indices'),
    (dict(out_indices=(1, 0)), 'rising'),
    (dict(frozen_stages=9), 'frozen_stages must be'),
    (dict(drop_path_rate=1.), 'below 1, not 1.0'),
])
def test_bad_arguments(name, argument, message):
    with pytest.raises(ValueError, match=message):
        build(name, **argument)
