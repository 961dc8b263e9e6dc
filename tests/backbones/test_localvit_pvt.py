"""LocalViT on PVT against the authors' release, and attention to a reduced map on its own."""
import pytest
import torch
from golden_utils import assert_matches_release, fill_, load_golden, with_strides_of_release

from backbones import localvit, localvit_pvt
from backbones.localvit_pvt import LocalViTPVT, SpatialReductionAttention
from backbones.pretrained import load_pretrained


def tiny(**kwargs):
    """Two stages, the first with reduced keys, the second with the class token."""
    torch.manual_seed(0)
    return LocalViTPVT(**{**dict(img_size=32, embed_dims=(8, 16), depths=(1, 2), num_heads=(1, 2),
                                 mlp_ratios=(4, 2), sr_ratios=(4, 1), out_indices=(0, 1)),
                          **kwargs})


@pytest.mark.golden
def test_matches_the_release(monkeypatch):
    for module in (localvit, localvit_pvt):
        with_strides_of_release(monkeypatch, module)
    with torch.device('meta'):
        model = LocalViTPVT()
    assert_matches_release(model, load_golden('localvit_pvt_t'), left_out=('norm.', ))


@pytest.mark.parametrize('size', [(8, 12), (6, 9), (1, 1)])
def test_keys_come_from_the_reduced_map(size):
    """Patch by patch, what lies outside the map being zero."""
    height, width = size
    attention = fill_(SpatialReductionAttention(8, 2, 4, True, 0., 0.))
    x = torch.randn(2, height * width, 8)
    context = []
    for top in range(0, height, 4):
        for left in range(0, width, 4):
            total = attention.sr.bias.expand(2, 8)
            for row in range(top, min(top + 4, height)):
                for column in range(left, min(left + 4, width)):
                    weight = attention.sr.weight[:, :, row - top, column - left]
                    total = total + x[:, row * width + column] @ weight.T
            context.append(attention.norm(total))
    k, v = attention.kv(torch.stack(context, dim=1)).split(8, dim=-1)
    q = attention.q(x)
    heads = []
    for channels in (slice(0, 4), slice(4, 8)):
        scores = q[..., channels] @ k[..., channels].transpose(1, 2) / 2  # sqrt(4)
        heads.append(scores.softmax(-1) @ v[..., channels])
    torch.testing.assert_close(attention(x, size), attention.proj(torch.cat(heads, dim=-1)))


def test_the_class_token_is_met_and_not_returned():
    model = fill_(tiny()).eval()
    x = torch.randn(2, 3, 40, 24)
    before = model(x)
    assert [out.shape for out in before] == [(2, 8, 10, 6), (2, 16, 5, 3)]
    with torch.no_grad():
        model.cls_token.add_(torch.randn(16))
    after = model(x)
    assert after[0].equal(before[0])
    assert (after[1] - before[1]).abs().amin((0, 1)).min() > 1e-6  # every place sees it


def test_positions_belong_to_their_grid():
    """Resampling while loading and while running agree; on the grid itself both do nothing."""
    small, large = fill_(tiny(img_size=24)).eval(), tiny(img_size=48).eval()
    state = small.state_dict()
    same, rules = small._adapt_weights(state, state)
    assert not rules and all(same[name] is state[name] for name in state)
    adapted, rules = large._adapt_weights(state, large.state_dict())
    assert rules == {'pos_embed1': 'positions resampled 6 x 6 -> 12 x 12',
                     'pos_embed2': 'positions resampled 3 x 3 -> 6 x 6'}
    assert adapted['pos_embed2'][:, 0].equal(state['pos_embed2'][:, 0])  # the class token's
    large.load_state_dict(adapted)
    x = torch.randn(1, 3, 48, 48)
    for a, b in zip(small(x), large(x), strict=True):
        torch.testing.assert_close(a, b)


def test_height_and_width_are_treated_alike():
    """Transposed kernels and positions do to a transposed image what the others do to the image."""
    model, transposed = fill_(tiny()).eval(), tiny().eval()
    state = {name: value.mT if value.ndim == 4 else value
             for name, value in model.state_dict().items()}
    for name, side in (('pos_embed1', 8), ('pos_embed2', 4)):
        tokens, patches = state[name].tensor_split([state[name].shape[1] - side**2], dim=1)
        patches = patches.unflatten(1, (side, side)).transpose(1, 2).flatten(1, 2)
        state[name] = torch.cat([tokens, patches], dim=1)
    transposed.load_state_dict(state)
    x = torch.randn(2, 3, 40, 75)
    for a, b in zip(model(x), transposed(x.mT), strict=True):
        torch.testing.assert_close(a, b.mT)


def test_starts_from_a_classifier(tmp_path):
    source = fill_(tiny(img_size=64))
    classifier = dict(source.state_dict(), **{'norm.weight': torch.ones(16),
                                              'norm.bias': torch.ones(16),
                                              'head.weight': torch.ones(10, 16)})
    torch.save({'model': classifier}, tmp_path / 'weights.pth')
    model = tiny()
    missing, unexpected = load_pretrained(model, str(tmp_path / 'weights.pth'),
                                          model._adapt_weights)
    assert missing == [] and unexpected == ['norm.weight', 'norm.bias', 'head.weight']
    for name, value in model.state_dict().items():
        if not name.startswith('pos_embed'):
            assert value.equal(source.state_dict()[name]), name


def test_a_stage_is_frozen_with_its_patches_and_positions():
    model = tiny(depths=(1, 1, 1), embed_dims=(8, 8, 16), num_heads=(1, 1, 2),
                 mlp_ratios=(4, 4, 2), sr_ratios=(4, 2, 1), out_indices=(2, ), frozen_stages=2,
                 drop_rate=0.1).train()
    for name, p in model.named_parameters():
        assert p.requires_grad is name.startswith(('patch_embed3', 'pos_embed3', 'block3',
                                                   'cls_token')), name
    assert [model.get_submodule(f'pos_drop{i}').training for i in (1, 2, 3)] == [False, False, True]
    assert not model.block2.training and model.block3.training
    stem = tiny(frozen_stages=0)
    assert {name.split('.')[0] for name, p in stem.named_parameters() if not p.requires_grad} == {
        'patch_embed1', 'pos_embed1'}
    assert not any(p.requires_grad for p in tiny(frozen_stages=2).parameters())


def test_stages_behind_the_last_map_are_left_alone():
    model = tiny(out_indices=(0, ))
    out, = model(torch.randn(1, 3, 32, 32))
    (out * torch.randn_like(out)).sum().backward()
    for name, p in model.named_parameters():
        unused = name.startswith(('patch_embed2', 'pos_embed2', 'block2', 'cls_token'))
        assert (p.grad is None) is unused and p.requires_grad is not unused, name


def test_norm_eval_keeps_statistics():
    model = tiny(norm_eval=True).train()
    before = [buffer.clone() for buffer in model.buffers()]
    model(torch.randn(2, 3, 32, 32))
    assert all(a.equal(b) for a, b in zip(before, model.buffers(), strict=True))
    assert model.block1[0].training


def test_squeeze_width():
    assert tiny().block2[0].conv.conv[6].fc[0].weight.shape == (2, 32)  # 32 / 16
    assert tiny(reductions=(4, 4)).block2[0].conv.conv[6].fc[0].weight.shape == (8, 32)


@pytest.mark.parametrize('argument, message', [
    (dict(num_heads=(1, )), r'num_heads has 1 entries \(1,\), but there are 2 stages'),
    (dict(embed_dims=(8, 16, 32)), r'embed_dims has 3 entries'),
    (dict(mlp_ratios=(4, )), r'mlp_ratios has 1'),
    (dict(sr_ratios=(8, 4, 1)), r'sr_ratios has 3'),
    (dict(reductions=(4, )), r'reductions has 1'),
    (dict(sr_ratios=(4, 2)), r'sr_ratios must be .* class token .* not \(4, 2\)'),
    (dict(sr_ratios=(0, 1)), r'sr_ratios must be at least 1'),
    (dict(num_heads=(3, 2)), r'8 channels cannot be split over 3'),
    (dict(out_indices=(2, )), r'out_indices must be .* from 0 to 1'),
    (dict(frozen_stages=3), r'frozen_stages must be'),
    (dict(act='gelu'), r"act must be one of .* not 'gelu'"),
    (dict(img_size=4), r'img_size must be at least the last stride 8, not 4'),
])
def test_bad_arguments(argument, message):
    with pytest.raises(ValueError, match=message):
        tiny(**argument)
