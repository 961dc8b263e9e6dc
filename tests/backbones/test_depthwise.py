"""The depthwise convolution equals the stock one, gradients of first and second order too."""
import pytest
import torch
import torch.nn.functional as F

from backbones.ops import DepthwiseConv2d, depthwise_conv2d
from backbones.ops.depthwise import _DepthwiseConv2d


def stock(x, w):
    return F.conv2d(x, w, padding=w.shape[-1] // 2, groups=len(w))


@pytest.mark.parametrize('kernel_size', [1, 3, 5, 13])
@pytest.mark.parametrize('layout', [torch.contiguous_format, torch.channels_last])
def test_equals_the_stock_operation(kernel_size, layout):
    torch.manual_seed(0)
    x = torch.randn(2, 6, 9, 14).contiguous(memory_format=layout).requires_grad_()
    w = torch.randn(6, 1, kernel_size, kernel_size, requires_grad=True)
    results = []
    for function in (stock, depthwise_conv2d, _DepthwiseConv2d.apply):
        y = function(x, w)
        results.append((y, *torch.autograd.grad(y.square().sum(), (x, w))))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-4, atol=1e-3)


def test_gradcheck():
    torch.manual_seed(0)
    x = torch.randn(2, 3, 6, 7, dtype=torch.float64, requires_grad=True)
    w = torch.randn(3, 1, 5, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(depthwise_conv2d, (x, w))
    assert torch.autograd.gradgradcheck(depthwise_conv2d, (x, w))


def uses_own_gradient(conv, x):
    return '_DepthwiseConv2d' in type(conv(x).grad_fn).__name__


def test_own_gradient_only_where_it_helps():
    x = torch.randn(1, 4, 8, 8, requires_grad=True)
    assert uses_own_gradient(DepthwiseConv2d(4, 5, bias=False), x)
    assert not uses_own_gradient(DepthwiseConv2d(4, 3, bias=False), x)
    frozen = DepthwiseConv2d(4, 5, bias=False).requires_grad_(False)
    assert not uses_own_gradient(frozen, x)
    assert not uses_own_gradient(DepthwiseConv2d(4, 5, bias=False).to('meta'), x.to('meta'))


def test_no_weight_gradient_is_computed_for_nobody():
    """A frozen input, or a frozen kernel, costs nothing."""
    w = torch.randn(4, 1, 5, 5, requires_grad=True)
    y = depthwise_conv2d(torch.randn(1, 4, 8, 8), w)
    y.sum().backward()
    assert w.grad is not None
    with torch.no_grad():
        assert depthwise_conv2d(torch.randn(1, 4, 8, 8), w).grad_fn is None


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    torch.manual_seed(0)
    conv = DepthwiseConv2d(4, 5)
    x = torch.randn(2, 4, 8, 8, requires_grad=True)
    with torch.autocast('cpu', dtype=dtype):
        y = conv(x)
        assert uses_own_gradient(DepthwiseConv2d(4, 5, bias=False), x)
    assert y.dtype == dtype
    got = torch.autograd.grad(y.float().square().sum(), (x, conv.weight, conv.bias))
    expected = torch.autograd.grad((stock(x, conv.weight) + conv.bias.view(-1, 1, 1))
                                   .square().sum(), (x, conv.weight, conv.bias))
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b, rtol=0.05, atol=0.05 * b.abs().max().item())


def test_state_dict_is_that_of_a_convolution():
    conv = DepthwiseConv2d(4, 3)
    reference = torch.nn.Conv2d(4, 4, 3, padding=1, groups=4)
    reference.load_state_dict(conv.state_dict())
    x = torch.randn(1, 4, 5, 5)
    torch.testing.assert_close(conv(x), reference(x))
    with pytest.raises(ValueError, match='odd, not 4'):
        DepthwiseConv2d(4, 4)
