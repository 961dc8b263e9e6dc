"""LocalViT on DeiT against the authors' release, and locality on its own."""
import pytest
import torch
from golden_utils import (
    assert_matches_release,
    fill_,
    load_golden,
    with_input_of_norm,
    with_strides_of_release,
)
from torch import nn

from backbones import localvit
from backbones.layers import resample_positions
from backbones.localvit import ECALayer, LocalityFeedForward, LocalViT

GOLDEN = {
    'localvit_t': dict(),
    'localvit_t_se4': dict(reduction=4),
    'localvit_t_mlp6_relu6': dict(mlp_ratio=6, act='relu6'),
}


def tiny(**kwargs):
    torch.manual_seed(0)
    return LocalViT(**{**dict(img_size=64, embed_dim=16, depth=3, num_heads=2, reduction=8,
                              out_indices=(0, 2)), **kwargs})


@pytest.mark.golden
@pytest.mark.parametrize('name', GOLDEN)
def test_matches_the_release(name, monkeypatch):
    with_strides_of_release(monkeypatch, localvit)
    with torch.device('meta'):
        model = LocalViT(**GOLDEN[name])
    assert_matches_release(model, load_golden(name), with_input_of_norm)


@pytest.mark.parametrize('act', ['relu6', 'hs', 'hs+se', 'hs+eca', 'hs+ecah'])
def test_locality_in_equations(act):
    """x + BN(W2 gate(act(BN(K * act(BN(W1 x)))))), written out with einsum and unfold."""
    torch.manual_seed(0)
    block = fill_(LocalityFeedForward(8, 2., act, reduction=4)).eval()
    x = torch.randn(2, 8, 5, 7)
    layers = list(block.conv)
    activation = (lambda t: t.clamp(0, 6)) if act == 'relu6' else (
        lambda t: t * (t + 3).clamp(0, 6) / 6)

    def norm(bn, t):
        mean, var, weight, bias = (v[:, None, None] for v in (
            bn.running_mean, bn.running_var, bn.weight, bn.bias))
        return (t - mean) / (var + 1e-5).sqrt() * weight + bias

    hidden = torch.einsum('oc,nchw->nohw', layers[0].weight[..., 0, 0], x)
    hidden = activation(norm(layers[1], hidden))
    patches = nn.functional.unfold(hidden, 3, padding=1).view(2, 16, 9, 5, 7)
    hidden = activation(norm(layers[4], torch.einsum(
        'cp,ncphw->nchw', layers[3].weight.view(16, 9), patches)))
    mean = hidden.mean((2, 3))
    if act == 'hs+se':
        first, _, second, _ = layers[6].fc
        gate = second((mean @ first.weight.T + first.bias).relu())
        hidden = hidden * (gate / 6 + 0.5).clamp(0, 1)[..., None, None]
    elif 'eca' in act:
        kernel = layers[6].conv.weight.flatten()
        assert len(kernel) == 3  # log2(16) / 2 + 1 / 2 = 2.5: 2, and the next odd number
        padded = nn.functional.pad(mean, (1, 1))
        gate = sum(kernel[i] * padded[:, i:i + 16] for i in range(3))
        gate = (gate / 6 + 0.5).clamp(0, 1) if act == 'hs+ecah' else gate.sigmoid()
        hidden = hidden * gate[..., None, None]
    expected = x + norm(layers[-1], torch.einsum(
        'oc,nchw->nohw', layers[-2].weight[..., 0, 0], hidden))
    torch.testing.assert_close(block(x), expected)


def test_locality_passes_class_tokens_by():
    block = fill_(LocalityFeedForward(8, reduction=8)).eval()
    tokens, x = torch.randn(2, 2, 8), torch.randn(2, 8, 3, 4)
    out = block.on_tokens(torch.cat([tokens, x.flatten(2).mT], 1), (3, 4))
    torch.testing.assert_close(out[:, :2], tokens)
    torch.testing.assert_close(out[:, 2:].mT.reshape(2, 8, 3, 4), block(x))


def test_channel_gate_reach_grows_with_width():
    assert [ECALayer(c, False).conv.kernel_size[0] for c in (64, 256, 768)] == [3, 5, 5]


def test_positions_are_resampled_as_a_map():
    """A linear ramp stays one, and height is not taken for width."""
    model = tiny(img_size=64)  # 4 x 4 patches
    with torch.no_grad():
        model.pos_embed.zero_()
        ramp = torch.arange(4.)[:, None].expand(4, 4)  # grows downwards
        model.pos_embed[0, 1:, 0] = ramp.flatten()
    pos = resample_positions(model.pos_embed, (4, 4), (8, 12))
    assert pos.shape == (1, 97, 16) and pos[0, 0].equal(model.pos_embed[0, 0])
    grid = pos[0, 1:, 0].view(8, 12)
    assert (grid.diff(dim=0)[1:-1] > 0.2).all()
    torch.testing.assert_close(grid, grid[:, :1].expand(8, 12))
    assert resample_positions(model.pos_embed, (4, 4), (4, 4)) is model.pos_embed


def test_weights_of_another_image_size(tmp_path):
    torch.save({'model': fill_(tiny(img_size=96)).state_dict()}, tmp_path / 'w.pth')
    model = tiny(init_cfg=dict(type='Pretrained', checkpoint=str(tmp_path / 'w.pth')))
    model.init_weights()
    x = torch.randn(1, 3, 96, 64)
    large = fill_(tiny(img_size=96)).eval()(x)[-1]
    assert torch.cosine_similarity(model.eval()(x)[-1].flatten(), large.flatten(), 0) > 0.9
    with pytest.raises(ValueError, match='another model'):
        tiny(depth=9, out_indices=(8, ), init_cfg=model.init_cfg).init_weights()


@pytest.mark.parametrize('final_norm', [True, False])
def test_final_norm_is_for_the_last_block(final_norm):
    model = tiny(final_norm=final_norm)
    assert any(key.startswith('norm.') for key in model.state_dict()) is final_norm
    assert not any(key.startswith('norm.') for key in tiny(out_indices=(0, 1)).state_dict())


@pytest.mark.parametrize('argument, message', [
    (dict(act='gelu'), 'act must be one of relu6, hs, .* not .gelu.'),
    (dict(reduction=65), 'reduction must be from 1 to the hidden width 64, not 65'),
    (dict(num_heads=3), '16 channels cannot be split over 3 attention heads'),
])
def test_bad_arguments(argument, message):
    with pytest.raises(ValueError, match=message):
        tiny(**argument)
