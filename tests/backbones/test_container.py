"""CONTAINER-Light against the authors' release, and its blocks against explicit matrices."""
import pytest
import torch
from golden_utils import assert_matches_release, fill_, load_golden, with_input_of_norm

from backbones.container import Container, ContainerBlock, LearnedAffinity

HEIGHT, WIDTH, DIM, HEADS = 4, 6, 8, 2
PLACES = HEIGHT * WIDTH


def block(affinity):
    torch.manual_seed(0)
    return fill_(ContainerBlock(DIM, HEADS, 2., affinity, True, 0., 0., 0.,
                                (HEIGHT, WIDTH))).eval()


def tiny(**kwargs):
    torch.manual_seed(0)
    return Container(**{**dict(
        embed_dims=(8, 16), depths=(1, 2), num_heads=2, mlp_ratios=(2, 2), patch_sizes=(4, 2),
        affinity=('static', 'mixed'), out_indices=(0, 1), img_size=64), **kwargs})


@pytest.mark.golden
def test_matches_the_release():
    golden = load_golden('container_light')
    with torch.device('meta'):
        model = Container()
    head = 512 * 1000 + 1000
    assert sum(p.numel() for p in model.parameters()) + head == golden['params']
    assert_matches_release(model, golden, with_input_of_norm)


def convolution_matrix(kernel):
    """(C, 1, 5, 5) as (C, N, N): row a holds what place a takes from each place."""
    matrix = torch.zeros(len(kernel), PLACES, PLACES)
    for y in range(HEIGHT):
        for x in range(WIDTH):
            for v in range(max(0, y - 2), min(HEIGHT, y + 3)):
                for u in range(max(0, x - 2), min(WIDTH, x + 3)):
                    matrix[:, y * WIDTH + x, v * WIDTH + u] = kernel[:, 0, v - y + 2, u - x + 2]
    return matrix


def attention_matrix(q, k):
    """(C, N) each, one image, as (C, N, N): each channel uses its head's matrix."""
    width = DIM // HEADS
    matrices = []
    for head in range(HEADS):
        part = slice(head * width, (head + 1) * width)
        matrices += [torch.softmax(q[part].T @ k[part] / width**0.5, dim=1)] * width
    return torch.stack(matrices)


@pytest.mark.parametrize('affinity', ['static', 'dynamic', 'mixed', 'mlp'])
def test_each_affinity_is_a_matrix(affinity):
    """A V, with A written out, is what the block gathers (paper, section 3)."""
    model = block(affinity)
    x = torch.randn(1, DIM, HEIGHT, WIDTH)
    projected = torch.einsum('oc,cn->on', model.conv1.weight[..., 0, 0], x[0].flatten(1))
    projected = projected + model.conv1.bias[:, None]
    v, bias = projected[-DIM:], 0.
    if affinity == 'static':
        matrix, bias = convolution_matrix(model.attn.weight), model.attn.bias[:, None]
    elif affinity == 'mlp':
        matrix = model.attn.weight.repeat_interleave(DIM // HEADS, 0)
    else:
        matrix = attention_matrix(projected[:DIM], projected[DIM:2 * DIM])
    if affinity == 'mixed':
        alpha = 1 / (1 + torch.exp(-model.sa_weight))
        matrix = alpha * matrix + (1 - alpha) * convolution_matrix(model.conv.weight)
        bias = (1 - alpha) * model.conv.bias[:, None]
    expected = (torch.einsum('cnm,cm->cn', matrix, v) + bias).view(1, DIM, HEIGHT, WIDTH)
    torch.testing.assert_close(model.gather(x), expected)


@pytest.mark.parametrize(('gate', 'affinity'), [(1e4, 'dynamic'), (-1e4, 'static')])
def test_the_mixture_contains_both_of_its_parts(gate, affinity):
    mixed, part = block('mixed'), block(affinity)
    state = mixed.state_dict()
    if affinity == 'static':
        for kind in ('weight', 'bias'):
            state[f'attn.{kind}'] = state[f'conv.{kind}']
            state[f'conv1.{kind}'] = state[f'conv1.{kind}'][-DIM:]
    part.load_state_dict({key: state[key] for key in part.state_dict()})
    mixed, part = mixed.double(), part.double()  # conv1's width may change its rounding
    x = torch.randn(2, DIM, HEIGHT, WIDTH, dtype=torch.float64)
    assert not torch.allclose(mixed(x), part(x), atol=1e-2)
    torch.nn.init.constant_(mixed.sa_weight, gate)
    torch.testing.assert_close(mixed(x), part(x), rtol=0, atol=1e-13)


def test_a_learned_matrix_fits_other_grids():
    affinity = LearnedAffinity(2, (4, 4))
    assert affinity.matrix((4, 4)) is affinity.weight
    with torch.no_grad():  # from all places the same: a mean, whatever the grid
        affinity.weight.fill_(1 / 16)
    values = torch.randn(2, 8, 5, 7)
    torch.testing.assert_close(
        affinity(values), values.mean((2, 3), keepdim=True).expand_as(values))
    with torch.no_grad():  # each place takes from places of its own height
        rows = torch.arange(16) // 4
        affinity.weight[:] = (rows[:, None] == rows).float() / 4
    matrix = affinity.matrix((8, 4))[0].unflatten(1, (8, 4)).unflatten(0, (8, 4))
    own = torch.stack([matrix[y, :, y].sum(-1) for y in range(8)])
    far = torch.stack([matrix[y, :, (y + 4) % 8].sum(-1) for y in range(8)])
    assert (own > 0.3).all() and (far == 0).all()


@pytest.mark.parametrize('size', [(28, 28), (20, 30), (10, 14), (5, 6), (3, 4), (1, 1)])
def test_a_learned_matrix_keeps_its_sums(size):
    """A local mean is about a mean at any resolution, and stays centred on its place."""
    affinity = LearnedAffinity(1, (14, 14))
    places = torch.cartesian_prod(torch.arange(14.), torch.arange(14.))
    with torch.no_grad():
        affinity.weight[0] = torch.softmax(-torch.cdist(places, places)**2 / 2, dim=1)
    matrix = affinity.matrix(size)[0]
    torch.testing.assert_close(matrix.sum(1), torch.ones(len(matrix)), rtol=0, atol=0.1)
    places = torch.cartesian_prod(*(14 * (torch.arange(n) + 0.5) / n for n in size))
    inner = (places > 3).all(1) & (places < 11).all(1)
    centre = matrix @ places / matrix.sum(1, keepdim=True)
    torch.testing.assert_close(centre[inner], places[inner], rtol=0, atol=0.3)


def test_norm_belongs_to_the_last_stage():
    assert 'norm.weight' in tiny().state_dict()
    model = tiny(out_indices=(0, ))
    assert 'norm.weight' not in model.state_dict()
    raw = tiny().eval()
    x = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        raw.norm.weight.zero_()
        raw.norm.bias.fill_(3.)
    first, last = raw(x)
    assert (last == 3.).all() and not (first == 3.).any()


@pytest.mark.parametrize('argument, message', [
    (dict(affinity=('static', 'global')), 'must be static, dynamic, mixed, mlp, not .global.'),
    (dict(affinity='static'), 'one word a stage'),
    (dict(affinity=('static', )), 'affinity has 1 entries'),
    (dict(embed_dims=(8, )), 'embed_dims has 1 entries'),
    (dict(num_heads=3), '16 channels cannot be split over 3 attention heads'),
])
def test_bad_arguments(argument, message):
    with pytest.raises(ValueError, match=message):
        tiny(**argument)
