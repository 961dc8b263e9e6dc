"""What a detection framework asks of any backbone, asked of every family."""
import pytest
import torch
from golden_utils import fill_
from torch.nn.modules.batchnorm import _BatchNorm

import backbones

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


def loss_of(outs):
    """A fixed random projection: the mean square of a normalised map would hardly depend on it."""
    generator = torch.Generator().manual_seed(3)
    return sum((out.float() * torch.randn(out.shape, generator=generator)).mean() for out in outs)


def gradients(model, x):
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    grads = torch.autograd.grad(loss_of(model(x)), list(parameters.values()), allow_unused=True)
    return dict(zip(parameters, grads, strict=True))


def statistics(model):
    return {name: b.clone() for name, b in model.named_buffers() if 'running' in name}


every_family = pytest.mark.parametrize('name', FAMILIES)


def test_every_registered_backbone_is_asked():
    families = {name for name in backbones.__all__
                if issubclass(getattr(backbones, name), backbones.base.Backbone)}
    assert families == set(FAMILIES)


@every_family
@pytest.mark.parametrize('size', [(64, 96), (75, 101), (33, 31), (4, 200), (1, 1)])
def test_any_image_size(name, size):
    height, width = size
    model = build(name).eval()
    _, channels, strides, _ = FAMILIES[name]
    outs = model(torch.randn(2, 3, height, width))
    assert isinstance(outs, tuple)
    for out, dim, stride in zip(outs, channels, strides, strict=True):
        assert out.shape == (2, dim, -(-height // stride), -(-width // stride))
        assert out.is_contiguous() and out.isfinite().all()


@every_family
def test_images_of_a_batch_do_not_meet(name):
    model = fill_(build(name)).eval()
    x = torch.randn(2, 3, 48, 80)
    for both, first in zip(model(x), model(x[:1]), strict=True):
        torch.testing.assert_close(both[:1], first)


@every_family
@pytest.mark.parametrize('training', [False, True])
def test_a_batch_of_one_has_its_gradients(name, training):
    """Those of the same image twice. (On the CPU torch 2.13 has a BatchNorm gradient that is wrong
    for some strides, which only a batch of one can have.)"""
    model = fill_(build(name)).double().train(training)
    x = torch.randn(1, 3, 64, 96, dtype=torch.float64)
    weights = [torch.randn(out.shape, dtype=torch.float64) for out in model(x)]
    grads = []
    for batch in (x, x.repeat(2, 1, 1, 1)):
        model.zero_grad()
        sum((out * weight).sum() for out, weight in zip(model(batch), weights, strict=True)
            ).div(len(batch)).backward()
        grads.append({key: p.grad for key, p in model.named_parameters()})
    torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-5)  # T2T-ViT has float32 in it


@every_family
def test_height_and_width_are_not_confused(name):
    """What changes in the right third of an image changes the right third of its maps."""
    model = fill_(build(name)).eval()
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(1, 3, 64, 192, generator=generator)
    changed = x.clone()
    changed[..., 128:] = torch.randn(1, 3, 64, 64, generator=generator)
    for a, b in zip(model(x), model(changed), strict=True):
        change = (a - b).abs().mean((0, 1))  # (H, W)
        third = change.shape[1] // 3
        assert change[:, -third:].mean() > 2 * change[:, :third].mean()
        assert change[:, -third:].mean(1).min() > change[:, :third].mean(1).max()  # in all rows


@every_family
def test_every_trainable_parameter_gets_a_gradient(name):
    model = fill_(build(name)).train()
    for key, grad in gradients(model, torch.randn(2, 3, 64, 96)).items():
        assert grad is not None and grad.isfinite().all(), key


@every_family
def test_what_lies_behind_the_last_map_is_left_alone(name):
    model = build(name, out_indices=(0, )).train()
    assert len(model(torch.randn(2, 3, 64, 96))) == 1
    for key, grad in gradients(model, torch.randn(2, 3, 64, 96)).items():
        assert grad is not None, key
    frozen = sum(not p.requires_grad for p in model.parameters())
    assert frozen > sum(not p.requires_grad for p in build(name).parameters())


@every_family
def test_checkpointing_changes_nothing_but_memory(name):
    x = torch.randn(2, 3, 64, 96)
    results = []
    for use_checkpoint in (False, True):
        model = fill_(build(name, use_checkpoint=use_checkpoint, drop_path_rate=0.5)).train()
        torch.manual_seed(1)  # the same paths are dropped, and again in the recomputation
        results.append((gradients(model, x), statistics(model)))
    for plain, checkpointed in zip(*results, strict=True):
        for key, value in plain.items():
            torch.testing.assert_close(value, checkpointed[key], msg=key)


@every_family
def test_frozen_parts_stay_frozen(name):
    parts = FAMILIES[name][3]
    free = [sum(p.requires_grad for p in build(name, frozen_stages=k).parameters())
            for k in range(-1, parts + 1)]
    assert free == sorted(set(free), reverse=True) and free[-1] == 0  # each step freezes more
    model = fill_(build(name, frozen_stages=1, drop_path_rate=0.1)).train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    x = torch.randn(2, 3, 64, 96)
    trainable = [p for p in model.parameters() if p.requires_grad]
    first = model(x)[0]
    loss_of(model(x)).backward()
    torch.optim.SGD(trainable, lr=1.).step()
    torch.testing.assert_close(model(x)[0], first)  # its whole way is frozen, in eval mode
    moved = {key for key, value in model.state_dict().items() if not value.equal(before[key])}
    trainable = {key for key, p in model.named_parameters() if p.requires_grad}
    # A bias that BatchNorm takes away has a gradient of rounding errors.
    assert {key for key, p in model.named_parameters()
            if p.requires_grad and p.grad.abs().max() > 1e-6} <= moved
    for key in moved - trainable:  # statistics of what is not frozen
        owner = model.get_submodule(key.rpartition('.')[0])
        assert isinstance(owner, _BatchNorm) and owner.weight.requires_grad, key


@every_family
def test_norm_eval_keeps_statistics(name):
    if not any(isinstance(m, _BatchNorm) for m in build(name).modules()):
        pytest.skip('has no BatchNorm')
    x = torch.randn(2, 3, 64, 96)
    for norm_eval in (False, True):
        model = build(name, norm_eval=norm_eval).train()
        before = statistics(model)
        model(x)
        for key, value in statistics(model).items():
            assert value.equal(before[key]) is norm_eval, key


@every_family
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_mixed_precision(name, dtype):
    model = fill_(build(name)).train()
    x = torch.randn(2, 3, 64, 96)
    exact = gradients(model, x)
    with torch.autocast('cpu', dtype=dtype):
        mixed = gradients(model, x)
    for key, grad in mixed.items():
        assert grad.isfinite().all() and grad.dtype == torch.float32, key
    a, b = (torch.cat([g.flatten() for g in grads.values()]) for grads in (exact, mixed))
    assert torch.cosine_similarity(a, b, 0) > 0.98


@every_family
def test_compiles_without_graph_breaks(name):
    model = fill_(build(name)).train()
    compiled = torch.compile(model, fullgraph=True, backend='aot_eager')
    x = torch.randn(2, 3, 48, 80)
    for a, b in zip(model(x), compiled(x), strict=True):
        torch.testing.assert_close(a, b)
    for (key, a), b in zip(gradients(model, x).items(), gradients(compiled, x).values(),
                           strict=True):
        torch.testing.assert_close(a, b, msg=key)


@every_family
def test_exports(name):
    model = fill_(build(name)).eval()
    x = torch.randn(1, 3, 48, 80)
    exported = torch.export.export(model, (x, )).module()
    for a, b in zip(model(x), exported(x), strict=True):
        torch.testing.assert_close(a, b)


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
