"""LocalViT on TNT against the authors' release, and pixels that stay in their patch."""
import pytest
import torch
from golden_utils import assert_matches_release, fill_, load_golden, with_input_of_norm

from backbones.layers import tokens_to_map
from backbones.localvit_tnt import Attention, LocalViTTNT


def tiny(**kwargs):
    torch.manual_seed(0)
    return LocalViTTNT(**{**dict(img_size=64, embed_dim=16, in_dim=4, depth=3, num_heads=2,
                                 in_num_heads=2, reduction=8, out_indices=(0, 2)), **kwargs})


def as_recorded(model, x):
    """The maps as the release's tensors look when its forward pass is over.

    It adds the pixels to the patch tokens in place, so what blocks 3, 6 and 9 returned holds by
    then the addition of the block after them too.
    """
    added = []
    handles = [model.blocks[i + 1].proj.register_forward_hook(lambda *call: added.append(call[2]))
               for i in model.out_indices[:-1]]
    *maps, before, last = with_input_of_norm(model, x)
    for handle in handles:
        handle.remove()
    maps = [m + tokens_to_map(a, *m.shape[2:]) for m, a in zip(maps, added, strict=True)]
    return [*maps, before, last]


@pytest.mark.golden
def test_matches_the_release():
    with torch.device('meta'):
        model = LocalViTTNT()
    assert_matches_release(model, load_golden('localvit_tnt_t'), as_recorded)


def test_attention_stays_within_a_group():
    attention = Attention(8, 2, qkv_bias=True, attn_drop=0., proj_drop=0.)
    x = torch.randn(2, 3, 5, 8)
    q, k, v = (t.reshape(2, 3, 5, 2, 4) for t in (*attention.qk(x).chunk(2, -1), attention.v(x)))
    weights = torch.einsum('bgqmd,bgkmd->bgmqk', q, k).div(2).softmax(-1)
    expected = attention.proj(torch.einsum('bgmqk,bgkmd->bgqmd', weights, v).flatten(3))
    torch.testing.assert_close(attention(x), expected)


def test_layout_of_pixels():
    model = tiny()
    with torch.no_grad():
        model.pixel_pos.copy_(torch.arange(16.).view(1, 1, 4, 4))
    x = torch.randn(2, 8, 20, 4)  # 2 x 5 patches
    pixels, size = model._pixels(x)
    assert size == (2, 5) and pixels.shape == (2, 10, 16, 4)
    # patch (1, 3), its pixel (2, 1)
    torch.testing.assert_close(pixels[:, 1 * 5 + 3, 2 * 4 + 1], x[:, 1 * 4 + 2, 3 * 4 + 1] + 9)


@pytest.mark.parametrize('changed, patches', [
    ((20, 40), {(1, 2)}),  # inside of a patch
    ((30, 40), {(1, 2), (2, 2)}),  # the 7 x 7 stem of the patch below reaches 3 rows up
    ((30, 46), {(1, 2), (2, 2), (1, 3), (2, 3)}),
    ((32, 48), {(2, 3)}),  # but not down
])
def test_inner_tokens_see_their_patch_only(changed, patches):
    model = fill_(tiny()).eval()
    x = torch.randn(1, 3, 64, 80)
    y = x.clone()
    y[:, :, changed[0], changed[1]] += 1
    with torch.no_grad():
        (before, _), (after, _) = (model.blocks[0](*model._stem(image)) for image in (x, y))
    differs = (before - after).abs().amax((0, 2, 3)).view(4, 5) > 1e-6
    assert {tuple(index) for index in differs.nonzero().tolist()} == patches


def test_pixels_reach_the_patches_but_not_the_class_token():
    block = fill_(tiny()).blocks[0].eval()
    with torch.no_grad():  # nothing else moves the patches
        block.attn_out.proj.weight.zero_()
        block.conv.conv[-1].weight.zero_()
    pixels, patches = torch.randn(1, 6, 16, 4), torch.randn(1, 7, 16)
    with torch.no_grad():
        (_, a), (_, b) = (block((p, patches), (2, 3)) for p in (pixels, pixels + torch.eye(4)[0]))
    moved = (a - b).abs().amax((0, 2)) > 1e-6
    assert moved.tolist() == [False] + [True] * 6


def test_positions_are_resampled_alike_in_forward_and_in_files():
    source = fill_(tiny()).eval()
    model = tiny(img_size=96).eval()
    state, rules = model._adapt_weights(source.state_dict(), model.state_dict())
    assert rules == {'patch_pos': 'positions resampled 4 x 4 -> 6 x 6'}
    model.load_state_dict(state)
    x = torch.randn(1, 3, 96, 96)
    for a, b in zip(source(x), model(x), strict=True):
        torch.testing.assert_close(a, b)


def test_frozen_stem_includes_its_parameters():
    model = tiny(frozen_stages=0, drop_rate=0.1).train()
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert {'cls_token', 'patch_pos', 'pixel_pos', 'proj.weight', 'norm2_proj.bias'} <= frozen
    assert not any(name.startswith(('blocks', 'norm.')) for name in frozen)
    assert not model.pos_drop.training and model.blocks[0].training


def test_norm_eval():
    model = tiny(norm_eval=True).train()
    norm = model.blocks[0].conv.conv[1]
    model(torch.randn(2, 3, 32, 48))
    assert norm.num_batches_tracked == 0 and model.blocks[0].training


@pytest.mark.parametrize('argument, message', [
    (dict(patch_size=10), 'patch_size must be a multiple of 4, .* not 10'),
    (dict(patch_size=0), 'patch_size must be a multiple of 4'),
    (dict(num_heads=3), '16 channels cannot be split over 3'),
    (dict(in_num_heads=3), '4 channels cannot be split over 3'),
    (dict(act='gelu'), "act must be one of .* not 'gelu'"),
    (dict(reduction=65), 'reduction must be from 1 to the hidden width 64, not 65'),
])
def test_bad_arguments(argument, message):
    with pytest.raises(ValueError, match=message):
        tiny(**argument)
