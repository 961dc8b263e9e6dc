"""Depthwise convolution whose weight gradient is fast on the CPU too.

For y[n, c] = x[n, c] * w[c] (correlation with a k x k kernel, stride 1, zero padding k // 2) the
weight gradient is a correlation as well, of the input with the output gradient:

    dL/dw[c, i, j] = sum_n sum_{u, v} x[n, c, u + i - k // 2, v + j - k // 2] * dL/dy[n, c, u, v]

which is a grouped convolution with H x W kernels, one group a sample and channel, that yields only
k x k values each. PyTorch's CPU kernel for this gradient takes 5 to 30 times as long as the
forward pass once k >= 5; the grouped convolution takes about as long as the forward pass
(docs/benchmarks.md). GPU kernels have no such weakness, so there the stock operation stays.
"""
import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Below this kernel size PyTorch's own gradient is as fast (measured: docs/benchmarks.md).
MIN_KERNEL_SIZE = 5


class _DepthwiseConv2d(torch.autograd.Function):

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.conv2d(x, weight, padding=weight.shape[-1] // 2, groups=weight.shape[0])

    @staticmethod
    def backward(ctx, grad: Tensor):
        x, weight = ctx.saved_tensors
        n, c, h, w = x.shape
        k = weight.shape[-1]
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            # an odd kernel with 'same' padding: the adjoint is the flipped kernel
            grad_x = F.conv2d(grad, weight.flip(2, 3), padding=k // 2, groups=c)
        if ctx.needs_input_grad[1]:
            grad_weight = F.conv2d(x.reshape(1, n * c, h, w), grad.reshape(n * c, 1, h, w),
                                   padding=k // 2, groups=n * c)
            grad_weight = grad_weight.view(n, c, k, k).sum(0).unsqueeze(1)
        return grad_x, grad_weight


def depthwise_conv2d(x: Tensor, weight: Tensor) -> Tensor:
    """Depthwise convolution, stride 1, zero padding that keeps the size.

    Args:
        x: (N, C, H, W).
        weight: (C, 1, k, k), k odd.

    Returns:
        (N, C, H, W), equal to ``F.conv2d(x, weight, padding=k // 2, groups=C)``, gradients too.
    """
    if (weight.requires_grad and torch.is_grad_enabled() and x.device.type == 'cpu'
            and weight.shape[-1] >= MIN_KERNEL_SIZE and x.numel()):
        # Autocast does not look inside an autograd function. (It leaves float64 as it is.)
        if torch.is_autocast_enabled('cpu') and torch.float64 not in (x.dtype, weight.dtype):
            dtype = torch.get_autocast_dtype('cpu')
            x, weight = x.to(dtype), weight.to(dtype)
        return _DepthwiseConv2d.apply(x, weight)
    return F.conv2d(x, weight, padding=weight.shape[-1] // 2, groups=weight.shape[0])


class DepthwiseConv2d(nn.Conv2d):
    """``nn.Conv2d(channels, channels, k, padding=k // 2, groups=channels)`` with that gradient.

    State-dict entries are those of ``nn.Conv2d``.
    """

    def __init__(self, channels: int, kernel_size: int, bias: bool = True):
        if kernel_size % 2 == 0:
            raise ValueError(f'a depthwise kernel that keeps the size is odd, not {kernel_size}')
        super().__init__(channels, channels, kernel_size, padding=kernel_size // 2,
                         groups=channels, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        y = depthwise_conv2d(x, self.weight)
        return y if self.bias is None else y + self.bias.to(y.dtype).view(1, -1, 1, 1)
