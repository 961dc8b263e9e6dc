"""FocalNet against the authors' release, and what a detection framework asks of a backbone."""
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


def loss_of(outs):
    """A fixed random projection: the mean square of a normalised map would hardly depend on it."""
    generator = torch.Generator().manual_seed(3)
    return sum((out.float() * torch.randn(out.shape, generator=generator)).mean() for out in outs)


def tiny(**kwargs):
    """A FocalNet of two small stages with everything switched on."""
    torch.manual_seed(0)
    return FocalNet(**{**dict(embed_dim=8, depths=(1, 2), focal_levels=(2, 1),
                              focal_windows=(5, 3), out_indices=(0, 1), use_conv_embed=True,
                              use_layerscale=True, layerscale_value=0.5), **kwargs})


@pytest.mark.parametrize('name', GOLDEN)
def test_matches_the_release(name):
    golden = load_golden(name)
    with torch.device('meta'):  # no time is spent on initial values
        model = FocalNet(**GOLDEN[name], drop_path_rate=0.)
    assert sum(p.numel() for p in model.parameters()) == golden['params']
    assert_matches_release(model, golden)


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


@pytest.mark.parametrize('size', [(64, 96), (75, 101), (33, 31), (4, 200), (1, 1)])
def test_any_image_size(size):
    height, width = size
    outs = tiny().eval()(torch.randn(2, 3, height, width))
    for i, out in enumerate(outs):
        stride = 4 * 2**i
        assert out.shape == (2, 8 * 2**i, -(-height // stride), -(-width // stride))
        assert out.is_contiguous()


def test_out_indices_own_their_norms():
    model = tiny(out_indices=(1, ))
    assert [out.shape[1] for out in model(torch.randn(1, 3, 32, 32))] == [16]
    assert not hasattr(model, 'norm0')


def test_stages_behind_the_last_map_are_left_alone():
    model = tiny(depths=(1, 1, 1), focal_levels=(1, ) * 3, focal_windows=(3, ) * 3,
                 out_indices=(0, 1), drop_path_rate=0.)
    loss_of(model(torch.randn(1, 3, 32, 32))).backward()
    for name, p in model.named_parameters():
        unused = name.startswith(('layers.1.downsample', 'layers.2'))
        assert (p.grad is None) is unused and p.requires_grad is not unused, name


def test_other_initialisations_are_upstreams():
    model = tiny(init_cfg=[dict(type='Constant', layer='Conv2d', val=3.)])
    model.init_weights()
    assert (model.patch_embed.proj.weight == 3.).all()


def test_checkpointing_changes_nothing_but_memory():
    x = torch.randn(2, 3, 32, 48)
    grads = []
    for use_checkpoint in (False, True):
        model = fill_(tiny(use_checkpoint=use_checkpoint, drop_path_rate=0.5)).train()
        torch.manual_seed(1)  # the same paths are dropped, and again in the recomputation
        loss_of(model(x)).backward()
        grads.append({name: p.grad for name, p in model.named_parameters()})
    for name, grad in grads[0].items():
        torch.testing.assert_close(grad, grads[1][name], msg=name)


@pytest.mark.parametrize('frozen_stages', [-1, 0, 1, 2])
def test_frozen_stages_stay_frozen(frozen_stages):
    model = tiny(frozen_stages=frozen_stages, drop_rate=0.1, drop_path_rate=0.1)
    model.train()
    frozen = {'patch_embed': frozen_stages >= 0, 'layers.0': frozen_stages >= 1,
              'layers.1': frozen_stages >= 2, 'norm0': frozen_stages >= 1,
              'norm1': frozen_stages >= 2}
    for name, expected in frozen.items():
        module = model.get_submodule(name)
        assert module.training is not expected, name
        assert all(p.requires_grad is not expected for p in module.parameters()), name
    before = {name: p.clone() for name, p in model.named_parameters()}
    if frozen_stages < 2:
        loss_of(model(torch.randn(8, 3, 32, 32))).backward()
        torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.).step()
    for name, p in model.named_parameters():
        owner = next(value for key, value in frozen.items() if name.startswith(key + '.'))
        assert p.equal(before[name]) is owner, name


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_mixed_precision(dtype):
    model = fill_(tiny(drop_path_rate=0.)).train()
    x = torch.randn(2, 3, 32, 48)
    exact = torch.autograd.grad(loss_of(model(x)), list(model.parameters()))
    with torch.autocast('cpu', dtype=dtype):
        outs = model(x)
    mixed = torch.autograd.grad(loss_of(outs), list(model.parameters()))
    for (name, _), a, b in zip(model.named_parameters(), exact, mixed, strict=True):
        assert b.isfinite().all() and b.dtype == torch.float32
        assert torch.cosine_similarity(a.flatten(), b.flatten(), 0) > 0.98, name


def test_compiles_without_graph_breaks():
    model = fill_(tiny(drop_path_rate=0.)).train()
    compiled = torch.compile(model, fullgraph=True, backend='aot_eager')
    x = torch.randn(1, 3, 32, 48)
    for a, b in zip(model(x), compiled(x), strict=True):
        torch.testing.assert_close(a, b)
    grads = [torch.autograd.grad(loss_of(m(x)), list(model.parameters()))
             for m in (model, compiled)]
    torch.testing.assert_close(*grads)


def test_exports():
    model = fill_(tiny()).eval()
    x = torch.randn(1, 3, 32, 48)
    exported = torch.export.export(model, (x, )).module()
    for a, b in zip(model(x), exported(x), strict=True):
        torch.testing.assert_close(a, b)


def test_drop_path_grows_linearly_over_all_blocks():
    model = FocalNet(embed_dim=8, depths=(1, 2, 2), focal_levels=(1, ) * 3,
                     focal_windows=(3, ) * 3, out_indices=(2, ), drop_path_rate=0.4)
    rates = [block.drop_path.drop_prob for layer in model.layers for block in layer.blocks]
    assert rates == pytest.approx([0., 0.1, 0.2, 0.3, 0.4])


@pytest.mark.parametrize('argument, message', [
    (dict(focal_levels=(2, 2, 2)), r'focal_levels has 3 entries \(2, 2, 2\), but there are 2 '),
    (dict(focal_windows=(3, )), r'focal_windows has 1 entries'),
    (dict(out_indices=(0, 2)), r'out_indices must be .* from 0 to 1, not \(0, 2\)'),
    (dict(out_indices=()), r'out_indices'),
    (dict(out_indices=(1, 0)), r'out_indices must be .* rising'),
    (dict(frozen_stages=3), r'frozen_stages must be'),
    (dict(focal_windows=(4, 3)), r'odd, not 4'),
    (dict(drop_path_rate=1.), r'below 1, not 1.0'),
])
def test_bad_arguments(argument, message):
    with pytest.raises(ValueError, match=message):
        tiny(**argument)
