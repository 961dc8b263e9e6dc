"""FocalNet against the authors' release. (What is asked of every family: test_families.py.)"""
import pytest
import torch
from golden_utils import (
    assert_close_to_golden,
    assert_matches_release,
    fill_,
    golden_input,
    load_golden,
    rule_value,
)

from backbones.focalnet import FocalNet, adapt_focalnet_weights

LARGE = dict(depths=(2, 2, 18, 2), use_conv_embed=True, use_postln=True, use_layerscale=True)
GOLDEN = {
    'focalnet_t_srf_det': dict(focal_levels=(2, ) * 4),
    'focalnet_b_lrf_det': dict(embed_dim=128, depths=(2, 2, 18, 2)),
    'focalnet_L_384_22k_dino': dict(LARGE, embed_dim=192, focal_windows=(5, ) * 4),
    'focalnet_L_384_22k_fl4_dino': dict(LARGE, embed_dim=192, focal_levels=(4, ) * 4,
                                        focal_windows=(3, ) * 4, normalize_modulator=True),
    'focalnet_H_224_22k_dino': dict(LARGE, embed_dim=352, focal_windows=(3, ) * 4,
                                    use_postln_in_modulation=True),
}


def tiny(**kwargs):
    """A FocalNet of two small stages with everything switched on."""
    torch.manual_seed(0)
    return FocalNet(**{**dict(embed_dim=8, depths=(1, 2), focal_levels=(2, 1),
                              focal_windows=(5, 3), out_indices=(0, 1), use_conv_embed=True,
                              use_layerscale=True, layerscale_value=0.5), **kwargs})


@pytest.mark.golden
@pytest.mark.parametrize('name', GOLDEN)
def test_matches_the_release(name):
    golden = load_golden(name)
    with torch.device('meta'):  # no time is spent on initial values
        model = FocalNet(**GOLDEN[name], drop_path_rate=0.)
    assert sum(p.numel() for p in model.parameters()) == golden['params']
    assert_matches_release(model, golden)


@pytest.mark.golden
@pytest.mark.parametrize('name', ['convert_t_lrf_k3_to_k9', 'convert_t_srf_k3_to_lrf_k9'])
def test_starts_from_classification_weights(name, tmp_path):
    golden = load_golden(name)
    checkpoint = {key: rule_value(key, shape) for key, shape in golden['checkpoint_keys']}
    torch.save({'model': {f'module.{key}': value for key, value in checkpoint.items()}},
               tmp_path / 'weights.pth')
    model = fill_(FocalNet(**golden['det'], drop_path_rate=0.,
                           init_cfg=dict(type='Pretrained',
                                         checkpoint=str(tmp_path / 'weights.pth'))))
    model.init_weights()
    run, = golden['runs']
    with torch.no_grad():
        outs = model.eval()(golden_input(run['input']))
    for out, record in zip(outs, run['outputs'], strict=True):
        assert_close_to_golden(out, record)


def test_adapting_keeps_what_the_network_computes():
    """Larger kernels: the same function as before."""
    small = fill_(tiny(focal_windows=(3, 3)))
    large = tiny(focal_windows=(7, 5))
    adapted, rules = adapt_focalnet_weights(small.state_dict(), large.state_dict())
    large.load_state_dict(adapted)
    x = torch.randn(1, 3, 40, 52)
    for a, b in zip(small.eval()(x), large.eval()(x), strict=True):
        torch.testing.assert_close(a, b)
    assert set(rules.values()) == {'kernel padded 3 -> 7', 'kernel padded 5 -> 9',
                                   'kernel padded 3 -> 5'}
    cropped, _ = adapt_focalnet_weights(large.state_dict(), small.state_dict())
    key = 'layers.0.blocks.0.modulation.focal_layers.0.0.weight'
    torch.testing.assert_close(cropped[key], small.state_dict()[key])


def test_out_indices_own_their_norms():
    model = tiny(out_indices=(1, ))
    assert [out.shape[1] for out in model(torch.randn(1, 3, 32, 32))] == [16]
    assert not hasattr(model, 'norm0')


def test_other_initialisations_are_upstreams():
    model = tiny(init_cfg=[dict(type='Constant', layer='Conv2d', val=3.)])
    model.init_weights()
    assert (model.patch_embed.proj.weight == 3.).all()


def test_drop_path_grows_linearly_over_all_blocks():
    model = FocalNet(embed_dim=8, depths=(1, 2, 2), focal_levels=(1, ) * 3,
                     focal_windows=(3, ) * 3, out_indices=(2, ), drop_path_rate=0.4)
    rates = [block.drop_path.drop_prob for layer in model.layers for block in layer.blocks]
    assert rates == pytest.approx([0., 0.1, 0.2, 0.3, 0.4])


@pytest.mark.parametrize('argument, message', [
    (dict(focal_levels=(2, 2, 2)), r'focal_levels has 3 entries \(2, 2, 2\), but there are 2 '),
    (dict(focal_windows=(3, )), r'focal_windows has 1 entries'),
    (dict(focal_windows=(4, 3)), r'odd, not 4'),
])
def test_bad_arguments(argument, message):
    with pytest.raises(ValueError, match=message):
        tiny(**argument)
