"""LocalViT on Swin against the authors' release, and shifted windows on their own."""
import pytest
import torch
from golden_utils import assert_matches_release, fill_, load_golden
from torch import nn

from backbones.localvit_swin import (
    LocalSwinBlock,
    LocalViTSwin,
    PatchMerging,
    adapt_swin_weights,
    from_windows,
    shift_windows,
    to_windows,
)
from backbones.pretrained import load_pretrained


def tiny(**kwargs):
    torch.manual_seed(0)
    return LocalViTSwin(**{**dict(embed_dim=8, depths=(2, 2), num_heads=(1, 2), window_size=4,
                                  out_indices=(0, 1)), **kwargs})


@pytest.mark.golden
def test_matches_the_release():
    golden = load_golden('localvit_swin_t')
    masks = [key for key, *_ in golden['keys'] if key.endswith('.attn_mask')]
    model = LocalViTSwin(out_norm=False)  # not on the meta device: the index is a buffer
    assert_matches_release(model, golden, left_out=('norm.', *masks))


def windowed_attention(block, x, shift):
    """Token by token: attention to all tokens that no window border separates from it.

    The borders lie at shift, shift + window, shift + 2 window, ... along each axis.
    """
    window, attn = block.window_size, block.attn
    batch, height, width, dim = x.shape
    full = [-(-side // window) * window for side in (height, width)]
    tokens = torch.zeros(batch, *full, dim)
    tokens[:, :height, :width] = block.norm1(x)
    heads, depth = attn.num_heads, dim // attn.num_heads
    q, k, v = attn.qkv(tokens).unflatten(-1, (3, heads, depth)).unbind(-3)
    places = [(row, column) for row in range(full[0]) for column in range(full[1])]
    table = attn.relative_position_bias_table.unflatten(0, (2 * window - 1, 2 * window - 1))
    out = torch.zeros(batch, height, width, heads, depth)
    for row in range(height):
        for column in range(width):
            mates = [(r, c) for r, c in places
                     if (r - shift[0]) // window == (row - shift[0]) // window
                     and (c - shift[1]) // window == (column - shift[1]) // window]
            scores = torch.stack([
                (q[:, row, column] * k[:, r, c]).sum(-1) / depth**0.5
                + table[row - r + window - 1, column - c + window - 1] for r, c in mates])
            for weight, (r, c) in zip(scores.softmax(0), mates, strict=True):
                out[:, row, column] += weight[..., None] * v[:, r, c]
    return x + attn.proj(out.flatten(3))


@pytest.mark.parametrize('size, shift', [
    ((6, 9), (2, 2)),  # padded to 8 x 12, shifted both ways
    ((3, 9), (0, 2)),  # lower than a window: nobody to meet above or below
    ((8, 4), (2, 0)),
    ((4, 3), (0, 0)),
])
@torch.no_grad()
def test_windows_token_by_token(size, shift):
    block = fill_(LocalSwinBlock(8, 2, 4, 2., True, 0., 0., 0., 'hs', 1)).eval()
    block.conv = nn.Identity()
    x = torch.randn(2, *size, 8)
    actual_shift, mask = shift_windows(size, 4, x)
    assert actual_shift == shift and (mask is None) is (shift == (0, 0))
    torch.testing.assert_close(block(x, shift, mask), windowed_attention(block, x, shift))
    torch.testing.assert_close(block(x, (0, 0), None), windowed_attention(block, x, (0, 0)))


def test_the_shift_of_the_classifier():
    """At 224 x 224 the masks are the released ones' shape, and the last stage needs none."""
    x = torch.zeros(1)
    for side, windows in ((56, 64), (28, 16), (14, 4)):
        shift, mask = shift_windows((side, side), 7, x)
        assert shift == (3, 3) and mask.shape == (windows, 1, 49, 49)
        assert set(mask.unique().tolist()) == {-100., 0.}
    assert shift_windows((7, 7), 7, x) == ((0, 0), None)


def test_windows_and_back():
    x = torch.randn(2, 8, 12, 3)
    windows = to_windows(x, 4)
    assert windows.shape == (12, 16, 3)
    torch.testing.assert_close(windows[7], x[1, :4, 4:8].reshape(16, 3))  # image 1, window 1
    assert from_windows(windows, 4, (8, 12)).equal(x)


def test_every_second_block_is_shifted():
    model = tiny(depths=(3, 1)).eval()
    seen = []
    for layer in model.layers:
        for block in layer.blocks:
            block.register_forward_pre_hook(lambda _, args: seen.append(args[1:]))
    model(torch.randn(1, 3, 40, 12))  # 10 x 3, then 5 x 2
    assert [shift for shift, _ in seen] == [(0, 0), (2, 0), (0, 0), (0, 0)]
    assert [mask is not None for _, mask in seen] == [False, True, False, False]


def test_patch_merging_pads_odd_sides():
    merge = fill_(PatchMerging(2))
    x = torch.randn(2, 3, 5, 2)
    out = merge(x)
    assert out.shape == (2, 2, 3, 4)
    none = torch.zeros(2, 2)
    corner = torch.cat([x[:, 2, 4], none, none, none], dim=1)  # the last column and row are padding
    torch.testing.assert_close(out[:, 1, 2], merge.reduction(merge.norm(corner)))
    inner = torch.cat([x[:, 0, 2], x[:, 1, 2], x[:, 0, 3], x[:, 1, 3]], dim=1)
    torch.testing.assert_close(out[:, 0, 1], merge.reduction(merge.norm(inner)))


def test_starts_from_a_classifier_with_masks_and_another_window(tmp_path):
    source = fill_(tiny(window_size=3))
    classifier = {name: value for name, value in source.state_dict().items()
                  if not name.startswith(('norm0', 'norm1'))}
    classifier['layers.0.blocks.1.attn_mask'] = torch.zeros(64, 9, 9)
    classifier['norm.weight'] = torch.ones(16)
    torch.save({'model': classifier}, tmp_path / 'weights.pth')
    model = tiny()
    own = {name: value.clone() for name, value in model.state_dict().items()}
    missing, unexpected = load_pretrained(model, str(tmp_path / 'weights.pth'),
                                          model._adapt_weights)
    assert missing == ['norm0.weight', 'norm0.bias', 'norm1.weight', 'norm1.bias']
    assert unexpected == ['norm.weight']  # and no mask
    for name, value in model.state_dict().items():
        if name.endswith('relative_position_index') or name in missing:
            assert value.equal(own[name]), name
        elif not name.endswith('relative_position_bias_table'):
            assert value.equal(source.state_dict()[name]), name


def test_position_biases_of_another_window():
    """Smooth biases stay the same function of the offset in windows; others are told apart."""
    small, large = tiny(window_size=4), tiny(window_size=8)
    name = 'layers.0.blocks.0.attn.relative_position_bias_table'
    state = small.state_dict()
    offsets = torch.arange(7) - 3.
    state[name] = (0.1 * offsets[:, None] + 0.2 * offsets).reshape(49, 1)
    adapted, rules = adapt_swin_weights(state, large.state_dict())
    assert rules[name] == 'window resampled 4 -> 8' and len(rules) == 4
    table = adapted[name].view(15, 15)
    assert table[7, 7].abs() < 1e-6  # an offset of none
    torch.testing.assert_close(table[8, 7], torch.tensor(0.1 * 7 / 15), atol=2e-3, rtol=0)
    torch.testing.assert_close(table[7, 8], torch.tensor(0.2 * 7 / 15), atol=4e-3, rtol=0)
    _, rules = adapt_swin_weights(state, state)
    assert not rules
    _, rules = adapt_swin_weights(state, tiny(num_heads=(2, 2), window_size=8).state_dict())
    assert name not in rules  # other heads are another model


@pytest.mark.parametrize('out_norm', [True, False])
def test_maps_own_their_norms(out_norm):
    model = tiny(out_indices=(1, ), out_norm=out_norm)
    names = {name.split('.')[0] for name in model.state_dict() if name.startswith('norm')}
    assert names == ({'norm1'} if out_norm else set())
    out, = model(torch.randn(2, 3, 32, 48))
    assert out.shape == (2, 16, 4, 6)
    assert (out.mean(1).abs().max() < 1e-5).item() is out_norm


def test_frozen_and_unused_stages():
    model = tiny(depths=(1, 1, 1), num_heads=(1, 1, 2), out_indices=(0, 1), frozen_stages=1,
                 drop_rate=0.1).train()
    for name, p in model.named_parameters():
        assert p.requires_grad is name.startswith(('layers.1.blocks', 'norm1')), name
    assert not any(model.get_submodule(name).training for name in
                   ('patch_embed', 'pos_drop', 'layers.0', 'norm0'))
    sum((out * torch.randn_like(out)).sum() for out in model(torch.randn(1, 3, 32, 32))).backward()
    for name, p in model.named_parameters():
        assert (p.grad is not None) is p.requires_grad, name


def test_norm_eval_keeps_statistics():
    model = tiny(norm_eval=True).train()
    before = [buffer.clone() for buffer in model.buffers()]
    model(torch.randn(2, 3, 32, 32))
    assert all(a.equal(b) for a, b in zip(before, model.buffers(), strict=True))
    assert model.layers[0].training


def test_squeeze_width():
    assert tiny().layers[1].blocks[0].conv.conv[6].fc[0].weight.shape == (16, 64)  # 64 / (16 / 4)
    assert tiny(reduction=8).layers[1].blocks[0].conv.conv[6].fc[0].weight.shape == (8, 64)


@pytest.mark.parametrize('argument, message', [
    (dict(num_heads=(1, )), r'num_heads has 1 entries \(1,\), but there are 2 stages'),
    (dict(num_heads=(3, 2)), r'8 channels cannot be split over 3'),
    (dict(window_size=0), r'window_size must be at least 1, not 0'),
    (dict(out_indices=(1, 0)), r'out_indices must be .* rising'),
    (dict(frozen_stages=3), r'frozen_stages must be'),
    (dict(act='gelu'), r"act must be one of .* not 'gelu'"),
    (dict(drop_path_rate=1.), r'below 1, not 1.0'),
])
def test_bad_arguments(argument, message):
    with pytest.raises(ValueError, match=message):
        tiny(**argument)
