"""What downstream/looking/inside.py reads of a network, against values computed by hand."""
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from backbones.container import Container, ContainerBlock
from backbones.focalnet import FocalNet, FocalNetBlock
from backbones.localvit import LocalViT
from backbones.localvit_pvt import LocalViTPVT
from backbones.localvit_swin import LocalViTSwin, to_windows
from backbones.localvit_t2t import LocalViTT2T
from backbones.localvit_tnt import LocalViTTNT
from downstream.looking.inside import (
    MAPS,
    Field,
    blocks_of,
    chosen,
    look_into,
    receptive_fields,
    stride_of,
    taps_of,
    upsampled,
    watching,
)


def maps_of(block, *args, cell=(0, 0)):
    """{name: values} of a block, and its numbers."""
    with torch.no_grad(), watching(taps_of(block)) as seen:
        block(*args)
        maps, numbers = MAPS[type(block)](block, seen, lambda size: cell)
    return {each.name: each.values for each in maps}, numbers


# -- FocalNet ------------------------------------------------------------------------------------

@pytest.mark.parametrize('normalize', [False, True])
def test_focalnet_by_hand(normalize):
    """A block whose context is its input, whose gates are known, on a map of 2 x 3 places."""
    block = FocalNetBlock(2, 1., 0., 0., False, 1., False, focal_level=1, focal_window=3,
                          normalize_modulator=normalize).eval()
    modulation, rows = block.modulation, torch.zeros(6, 2)
    block.norm1 = nn.Identity()
    rows[2:4] = torch.eye(2)  # context: the input; the query and the gates do not depend on it
    rows[4, 0] = 1.  # but level 1's, which is the first channel
    with torch.no_grad():
        modulation.f.weight.copy_(rows)
        modulation.f.bias.copy_(torch.tensor([0., 0., 0., 0., 0., -0.5]))
        modulation.focal_layers[0][0].weight.zero_()[:, 0, 1, 1] = 2.  # twice the place itself
        modulation.h.weight.copy_(3 * torch.eye(2)[:, :, None, None])
        modulation.h.bias.zero_()
    x = torch.tensor([[[1., 0.], [2., 1.], [-1., 0.]], [[0., 2.], [0., 0.], [3., -1.]]])
    maps, numbers = maps_of(block, x[None])
    scale = 0.5 if normalize else 1.
    torch.testing.assert_close(maps['gate of level 1'], scale * x[..., 0])
    torch.testing.assert_close(maps['gate of the global level'], torch.full((2, 3), -0.5 * scale))
    assert list(maps) == ['gate of level 1', 'gate of the global level', 'modulator']
    assert numbers['gate of level 1'] == pytest.approx(scale * 7 / 6)
    assert numbers['gate of the global level'] == pytest.approx(scale * 0.5)

    def gelu(value):
        return value * (1 + math.erf(value / 2**0.5)) / 2

    context = [[[gelu(2 * value) for value in place] for place in row] for row in x.tolist()]
    mean = [gelu(sum(place[c] for row in context for place in row) / 6) for c in range(2)]
    expected = [[math.hypot(*(3 * scale * (x[i, j, 0].item() * context[i][j][c] - 0.5 * mean[c])
                              for c in range(2))) for j in range(3)] for i in range(2)]
    torch.testing.assert_close(maps['modulator'], torch.tensor(expected))


# -- CONTAINER -----------------------------------------------------------------------------------

def container_block(affinity, dim=4, **kwargs):
    torch.manual_seed(0)
    return ContainerBlock(dim, 2, 1., affinity, True, 0., 0., 0., (3, 4), **kwargs).eval()


def test_container_by_hand():
    """With queries of zero a place attends to all places alike."""
    block = container_block('mixed')
    with torch.no_grad():
        block.conv1.weight[:4] = 0.
        block.conv1.bias[:4] = 0.
        block.sa_weight.fill_(math.log(3))  # sigmoid: 3 / 4
        block.conv.weight.copy_(torch.arange(25.).view(5, 5).expand(4, 1, 5, 5))
        block.conv.weight[0] += 4.  # the mean of the channels: 1 more
    maps, numbers = maps_of(block, torch.randn(1, 4, 3, 4), cell=(0, 1))
    torch.testing.assert_close(maps['dynamic affinity of the point'], torch.full((3, 4), 1 / 12))
    static = torch.tensor([[12., 13., 14., 15.], [17., 18., 19., 20.], [22., 23., 24., 25.]])
    torch.testing.assert_close(maps['static affinity of the point'], static)
    torch.testing.assert_close(maps['both, as they are mixed'], 0.75 / 12 + 0.25 * static)
    assert numbers['dynamic, as learned'] == pytest.approx(0.75)


def test_containers_rows_gather_what_the_block_gathers():
    block = container_block('mixed')
    nn.init.constant_(block.sa_weight, -0.7)
    x = torch.randn(1, 4, 3, 4)
    taken = {}
    block.conv2.register_forward_pre_hook(lambda module, args: taken.update(y=args[0]))
    block.conv1.register_forward_hook(lambda module, args, out: taken.update(v=out[:, 8:]))
    block.conv.register_forward_hook(lambda module, args, out: taken.update(conv=out))
    # one head and one channel: the means are the matrices themselves
    block.num_heads = 1
    block.conv.weight.data[:] = block.conv.weight.data[:1]
    block.conv.bias.data.zero_()
    for cell in (0, 0), (2, 3), (1, 2):
        maps, numbers = maps_of(block, x, cell=cell)
        row = maps['both, as they are mixed']
        torch.testing.assert_close((taken['v'][0] * row).sum((1, 2)),
                                   taken['y'][0][:, cell[0], cell[1]])
        assert maps['dynamic affinity of the point'].sum() == pytest.approx(1)
    alpha = numbers['dynamic, as learned']
    static = ((1 - alpha) * taken['conv'])[0]
    dynamic = taken['y'][0] - static
    share = dynamic.norm(dim=0) / (dynamic.norm(dim=0) + static.norm(dim=0))
    torch.testing.assert_close(maps['share of the dynamic affinity'], share)
    assert numbers['dynamic, share of what is gathered here'] == pytest.approx(share.mean().item())


@pytest.mark.parametrize('affinity, names, share', [
    ('static', ['static affinity of the point'], 0.),
    ('dynamic', ['dynamic affinity of the point'], 1.),
    ('mlp', ['learned affinity of the point'], None)])
def test_container_of_one_affinity(affinity, names, share):
    block = container_block(affinity)
    maps, numbers = maps_of(block, torch.randn(1, 4, 3, 4), cell=(1, 2))
    assert list(maps) == names and numbers.get('dynamic, as learned') == share
    if affinity == 'mlp':
        torch.testing.assert_close(maps[names[0]].flatten(), block.attn.weight[:, 6].mean(0))
    if affinity == 'dynamic':
        assert maps[names[0]].sum() == pytest.approx(1)


# -- LocalViT ------------------------------------------------------------------------------------

SMALL = dict(img_size=64, embed_dim=16, depth=2, reduction=16, out_indices=(0, 1))
LOCAL = {
    'deit': lambda: LocalViT(**SMALL, num_heads=2),
    'tnt': lambda: LocalViTTNT(**SMALL, num_heads=2, in_dim=6),
    't2t': lambda: LocalViTT2T(**SMALL, num_heads=2, token_dim=8),
    'pvt': lambda: LocalViTPVT(64, (8, 8, 16, 16), (1, 1, 1, 1), (1, 2, 2, 2), (2, 2, 2, 2),
                               sr_ratios=(4, 4, 2, 1)),
    'swin': lambda: LocalViTSwin(8, (2, 2, 2, 1), (1, 2, 2, 2), window_size=3),
}


def trained(backbone):
    """Weights that make attention uneven."""
    torch.manual_seed(1)
    for name, parameter in backbone.named_parameters():
        if any(part in name for part in ('qkv', '.q.', '.kv.', '.qk.', 'bias_table')):
            nn.init.normal_(parameter)
    return backbone.eval()


def swins_row(block, args, matrix, place):
    """A row of the windows' matrices (..., N, N), laid out by where each place's number went."""
    x, shift, _ = args
    side, (height, width) = block.window_size, x.shape[1:3]
    numbers = torch.arange(1, height * width + 1).view(1, height, width, 1)
    numbers = F.pad(numbers, (0, 0, 0, -width % side, 0, -height % side))  # 0 is no place
    numbers = to_windows(numbers.roll((-shift[0], -shift[1]), (1, 2)), side)[..., 0]
    matrix = matrix.reshape(len(numbers), block.attn.num_heads, side**2, side**2).mean(1)
    (window, query), = (numbers == place[0] * width + place[1] + 1).nonzero()
    row = torch.zeros(height * width + 1)
    row[numbers[window]] = matrix[window, query]
    return row[1:].view(height, width)


@pytest.mark.parametrize('name', LOCAL)
def test_attention_rows_are_the_networks_own(name, monkeypatch):
    """Of every block: what torch's attention makes of one-hot values."""
    backbone = trained(LOCAL[name]())
    height, width = 100, 132
    image, real, matrices = torch.randn(1, 3, height, width), F.scaled_dot_product_attention, []
    taken = {}
    for block in blocks_of(backbone).values():
        block.register_forward_pre_hook(lambda module, args: taken.update({module: args}))

    def attend(q, k, v, *args, **kwargs):
        eye = torch.eye(k.shape[-2]).expand(*k.shape[:-1], k.shape[-2])
        matrices.append(real(q, k, eye, *args, **kwargs))
        return real(q, k, v, *args, **kwargs)

    monkeypatch.setattr(F, 'scaled_dot_product_attention', attend)
    for point in (0, 0), (width - 1, height - 1), (width * 0.6, height * 0.4):
        matrices.clear()
        found = look_into(backbone, image, point)
        own = [each for each in matrices if name != 'tnt' or each.ndim == 4]  # not among pixels
        assert len(found) == len(own) == len(blocks_of(backbone))
        for (block, (maps, _)), matrix in zip(found.items(), own, strict=True):
            maps = {each.name: each.values for each in maps}
            row, size = maps['attention of the point'], maps['locality'].shape
            place = [int(at // stride_of((height, width), size)) for at in point[::-1]]
            block = backbone.get_submodule(block)
            if name == 'swin':
                expected = swins_row(block, taken[block], matrix, place)
                torch.testing.assert_close(row, expected)
                continue
            mean, extra = matrix[0].mean(0), matrix.shape[-2] - math.prod(size)
            index = extra + place[0] * size[1] + place[1]
            torch.testing.assert_close(row.flatten(), mean[index, extra:])
            assert ('attention of the class token' in maps) == bool(extra)
            if extra:
                torch.testing.assert_close(maps['attention of the class token'].flatten(),
                                           mean[0, extra:])
    if name == 'swin':
        assert any(any(args[1]) for args in taken.values())  # some windows are shifted


def test_locality_is_the_activation_behind_the_depthwise_convolution():
    backbone = trained(LOCAL['deit']())
    block, kept = backbone.blocks[1], {}
    block.conv.conv[4].register_forward_hook(lambda module, args, out: kept.update(out=out))
    (maps, _) = look_into(backbone, torch.randn(1, 3, 64, 64), (0, 0))['blocks.1']
    x = kept['out'][0]
    expected = (x * (x + 3).clamp(0, 6) / 6).square().sum(0).sqrt()  # h-swish
    torch.testing.assert_close(maps[-1].values, expected)


# -- maps and images -----------------------------------------------------------------------------

def test_which_blocks_are_shown():
    focal = FocalNet(8, (1, 2, 1, 1), focal_levels=(1,) * 4, focal_windows=(3,) * 4,
                     out_indices=(0, 1, 2))
    names = list(look_into(focal.eval(), torch.randn(1, 3, 64, 64), (0, 0)))
    assert names == ['layers.0.blocks.0', 'layers.1.blocks.0', 'layers.1.blocks.1',
                     'layers.2.blocks.0']  # the fourth stage is not run
    assert chosen(focal, names) == [names[0], names[2], names[3]]
    assert chosen(LOCAL['deit'](), ['blocks.0', 'blocks.1']) == ['blocks.0', 'blocks.1']
    assert not any(module._forward_hooks or module._forward_pre_hooks
                   for module in focal.modules())


@pytest.mark.parametrize('image, size, stride', [
    ((64, 96), (2, 3), 32), ((100, 130), (4, 5), 32), ((100, 130), (25, 33), 4),
    ((70, 70), (7, 7), 10), ((1, 1), (1, 1), 1)])
def test_strides(image, size, stride):
    assert stride_of(image, size) == stride


def test_a_place_lights_its_own_pixels():
    """Also where the map reaches beyond the image, which the network pads."""
    values = torch.zeros(3, 4)
    values[1, 2] = 1.
    large = upsampled(values, (10, 14))
    assert large.shape == (10, 14)
    rows, columns = (large == large.max()).nonzero().T
    assert rows.float().mean() + 0.5 == 6 and columns.float().mean() + 0.5 == 10  # 4 pixels a place
    assert large[:2].max() == 0 and large[:, :6].max() == 0
    assert upsampled(torch.full((3, 4), 2.), (10, 14)).unique().tolist() == [2.]


# -- receptive fields ----------------------------------------------------------------------------

def convolution(channels, kernel, stride=1, dilation=1, ones=True):
    layer = nn.Conv2d(*channels, kernel, stride, dilation * (kernel // 2), dilation)
    if ones:
        nn.init.ones_(layer.weight)
    return layer


class Stack(nn.Sequential):
    """Returns the map of every layer."""

    def forward(self, x):
        outs = []
        for layer in self:
            outs.append(x := layer(x))
        return tuple(outs)


def test_receptive_fields_of_convolutions():
    """Three 3 x 3 convolutions of ones: 3, 5 and 7 pixels, with the weights of all paths."""
    stack = Stack(*(convolution((3 if i == 0 else 1, 1), 3) for i in range(3))).eval()
    fields = receptive_fields(stack, torch.randn(1, 3, 15, 17))
    for field, paths in zip(fields, ([1, 1, 1], [1, 2, 3, 2, 1], [1, 3, 6, 7, 6, 3, 1]),
                            strict=True):
        expected, reach = np.zeros((15, 17)), len(paths) // 2
        expected[7 - reach:8 + reach, 8 - reach:9 + reach] = 3 * np.outer(paths, paths)
        np.testing.assert_allclose(field.gradient, expected, rtol=1e-6)
        assert field.stride == 1 and field.centre == (7.5, 8.5)
        assert field.side(1.) == len(paths)
        sides, shares = field.within()
        np.testing.assert_allclose(sides[:2], (1, 3))
        inner = np.array(paths)[reach - 1:reach + 2].sum() / sum(paths)
        np.testing.assert_allclose(shares[:2], ((paths[reach] / sum(paths))**2, inner**2),
                                   rtol=1e-6)


def test_receptive_fields_of_strided_and_dilated_convolutions():
    """The support, 1 + sum of (k - 1) x what the strides so far multiply to, wherever it lies."""
    stack = Stack(convolution((3, 2), 3, 2), convolution((2, 2), 3, 2),
                  convolution((2, 2), 3, dilation=2)).eval()
    fields = receptive_fields(stack, torch.randn(1, 3, 64, 64))
    assert [field.stride for field in fields] == [2, 4, 4]
    for field, support in zip(fields, (3, 7, 23), strict=True):
        assert field.side(1.) == support
        rows, columns = np.nonzero(field.gradient)
        assert np.ptp(rows) + 1 == np.ptp(columns) + 1 == support
        # padding of half a kernel moves the field up and to the left of the unit's own pixels
        assert field.centre == ((rows.min() + rows.max() + 1) / 2,
                                (columns.min() + columns.max() + 1) / 2)


def test_what_lies_far_away_does_not_move_the_centre():
    """As where attention sees a little of everything, on one side of the unit more than there is on
    the other.
    """
    gradient = np.full((40, 80), 0.001)
    gradient[9:12, 9:12] = 1.
    field = Field(gradient, 4.)
    assert field.centre == (10.5, 10.5)
    assert field.side(9 / gradient.sum()) == 3 and field.side(1.) == 2 * 69.5


def test_signs_do_not_cancel_and_nothing_is_said_of_nothing():
    gradient = np.zeros((8, 8), np.float32)
    assert Field(gradient, 4.).side(0.95) >= 1 and Field(gradient, 4.).centre == (4, 4)
    layer = convolution((3, 1), 3)
    layer.weight.data[:, 1] = -1.
    field, = receptive_fields(Stack(layer), torch.randn(1, 3, 9, 9))
    assert field.gradient.sum() == pytest.approx(27)


def test_receptive_fields_are_taken_before_a_layer_norm():
    """After it the channels of an untrained network always sum to zero."""
    torch.manual_seed(0)
    focal = FocalNet(8, (1, 1, 1, 1), focal_levels=(1,) * 4, focal_windows=(3,) * 4).eval()
    image = torch.randn(1, 3, 64, 96)
    fields = receptive_fields(focal, image)
    assert all(field.gradient.max() > 1e-3 for field in fields)
    image.requires_grad_()
    x = focal.layers[0].blocks[0](focal.patch_embed(image))
    expected, = torch.autograd.grad(x[0, 8, 12].sum(), image)
    np.testing.assert_allclose(fields[0].gradient, expected[0].abs().sum(0).numpy(), rtol=1e-4,
                               atol=1e-6)
    assert not any(module._forward_hooks for module in focal.modules())


def test_a_container_is_looked_into_as_a_whole():
    torch.manual_seed(0)
    backbone = Container((8, 8, 8, 16), (1, 1, 1, 2), 2, (1, 1, 1, 1)).eval()
    found = look_into(backbone, torch.randn(1, 3, 70, 90), (80., 10.))
    assert [numbers['dynamic, as learned'] for _, numbers in found.values()] == [0, 0, 0, .5, .5]
    row = found['blocks1.0'][0][0].values
    assert row.shape == (18, 23) and row[2, 20] != 0 and not row[:, :18].any()
