"""LocalViT on T2T-ViT against the authors' release, and tokens-to-token on its own."""
import pytest
import torch
import torch.nn.functional as F
from golden_utils import assert_matches_release, fill_, load_golden, with_input_of_norm

from backbones.localvit_t2t import (
    LocalViTT2T,
    TokenPerformer,
    linear_attention,
    random_features,
    sinusoid,
    soft_split,
)


def tiny(**kwargs):
    torch.manual_seed(0)
    return LocalViTT2T(**{**dict(img_size=64, embed_dim=16, token_dim=8, depth=3, num_heads=2,
                                 reduction=8, out_indices=(0, 2)), **kwargs})


@pytest.mark.golden
def test_matches_the_release():
    with torch.device('meta'):
        model = LocalViTT2T(out_indices=(2, 4, 6))
    assert_matches_release(model, load_golden('localvit_t2t_7'), with_input_of_norm)


def test_linear_attention_is_attention_with_a_kernel():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 10, 4)
    w = torch.randn(5, 4)
    kernel = random_features(q, w) @ random_features(k, w).mT  # (B, N, N)
    torch.testing.assert_close(linear_attention(q, k, v, w),
                               kernel / kernel.sum(-1, keepdim=True) @ v)


def test_many_features_make_softmax():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 12, 4)
    q, k = 0.35 * q, 0.35 * k
    softmax = (q @ k.mT).softmax(-1) @ v
    plain_mean = v.mean(1, keepdim=True)
    error = linear_attention(q, k, v, torch.randn(100000, 4)) - softmax
    assert error.norm() < 0.1 * (plain_mean - softmax).norm()


def test_features_are_fixed_and_orthogonal():
    w = TokenPerformer(6, 8, drop=0.).w
    assert not w.requires_grad
    torch.testing.assert_close(w @ w.T, 4 * torch.eye(4))


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_features_in_mixed_precision(dtype):
    """Tokens that all look along one w: phi reaches exp(16), which float16 does not."""
    torch.manual_seed(0)
    layer = TokenPerformer(6, 64, drop=0.).eval()
    with torch.no_grad():
        layer.kqv.weight[:128] = 0
        layer.kqv.bias[:128] = layer.w[0].repeat(2)
    x = torch.randn(2, 12, 6)
    exact = layer(x, (3, 4))
    with torch.autocast('cpu', dtype=dtype):
        mixed = layer(x, (3, 4))
    torch.testing.assert_close(mixed.float(), exact, atol=0.05, rtol=0.05)


@pytest.mark.parametrize('kernel_size, stride, padding, size', [(7, 4, 2, (3, 5)),
                                                                (3, 2, 1, (6, 10))])
def test_layout_of_soft_splits(kernel_size, stride, padding, size):
    x = torch.randn(2, 3, 12, 20)
    tokens, got = soft_split(x, kernel_size, stride, padding)
    assert got == size and tokens.shape == (2, size[0] * size[1], 3 * kernel_size**2)
    row, column = 1, 4
    window = F.pad(x, (padding, ) * 4)[:, :, row * stride:row * stride + kernel_size,
                                       column * stride:column * stride + kernel_size]
    assert tokens[:, row * size[1] + column].equal(window.flatten(1))


def test_maps_between_the_splits_have_the_images_proportions():
    model, shapes = tiny().eval(), []
    for layer in (model.tokens_to_token.attention1, model.tokens_to_token.attention2):
        layer.conv.register_forward_hook(lambda _, args, out: shapes.append(tuple(out.shape)))
    outs = model(torch.randn(1, 3, 33, 70))  # padded to 48 x 80
    assert shapes == [(1, 8, 12, 20), (1, 8, 6, 10)]
    assert outs[0].shape == (1, 16, 3, 5)


def test_sinusoid():
    positions = sinusoid(50, 6)
    assert positions.shape == (1, 50, 6)
    p = torch.arange(50.)
    for channel, expected in {0: p.sin(), 1: p.cos(), 4: (p / 10000**(2 / 3)).sin(),
                              5: (p / 10000**(2 / 3)).cos()}.items():
        torch.testing.assert_close(positions[0, :, channel], expected)


def test_what_is_fixed_survives_training():
    model = tiny().train()
    fixed = {'pos_embed', *(f'tokens_to_token.attention{i}.{name}' for i in (1, 2)
                            for name in ('w', 'norm2.weight', 'norm2.bias'))}
    before = {name: p.clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        sum(out[:, 0].mean() for out in model(torch.randn(2, 3, 48, 64))).backward()
        optimizer.step()
    for name, p in model.named_parameters():
        assert (p.grad is None) is (name in fixed) is p.equal(before[name]), name
    torch.testing.assert_close(model.pos_embed, sinusoid(1 + 4 * 4, 16))


def test_positions_are_resampled_alike_in_forward_and_in_files():
    source = fill_(tiny()).eval()
    model = tiny(img_size=96).eval()
    state, rules = model._adapt_weights(source.state_dict(), model.state_dict())
    assert rules == {'pos_embed': 'positions resampled 4 x 4 -> 6 x 6'}
    model.load_state_dict(state)
    x = torch.randn(1, 3, 96, 96)
    for a, b in zip(source(x), model(x), strict=True):
        torch.testing.assert_close(a, b)


def test_checkpointing_repeats_the_stems_dropout():
    grads = []
    for use_checkpoint in (False, True):
        model = fill_(tiny(use_checkpoint=use_checkpoint, token_drop_rate=0.5)).train()
        torch.manual_seed(1)
        model(torch.randn(2, 3, 48, 64))[-1][:, 0].mean().backward()
        grads.append({name: p.grad for name, p in model.named_parameters()
                      if p.grad is not None})
    torch.testing.assert_close(*grads)


def test_frozen_stem_includes_its_parameters():
    model = tiny(frozen_stages=0, drop_rate=0.1).train()
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert frozen == {name for name, _ in model.named_parameters()
                      if name.startswith(('tokens_to_token', 'cls_token', 'pos_embed'))}
    assert not model.pos_drop.training and model.blocks[0].training
    assert not model.tokens_to_token.attention1.drop.training


def test_norm_eval():
    model = tiny(norm_eval=True).train()
    model(torch.randn(2, 3, 32, 48))
    for conv in (model.blocks[0].conv.conv, model.tokens_to_token.attention1.conv.conv):
        assert conv[1].num_batches_tracked == 0
    assert model.tokens_to_token.attention1.drop.training


@pytest.mark.parametrize('argument, message', [
    (dict(img_size=100), 'img_size must be a multiple of 16, not 100'),
    (dict(img_size=0), 'img_size must be a multiple of 16'),
    (dict(token_dim=1), 'token_dim must be at least 2, not 1'),
    (dict(num_heads=3), '16 channels cannot be split over 3'),
    (dict(act='gelu'), "act must be one of .* not 'gelu'"),
    (dict(reduction=33), 'reduction must be from 1 to the hidden width 32, not 33'),
])
def test_bad_arguments(argument, message):
    with pytest.raises(ValueError, match=message):
        tiny(**argument)
