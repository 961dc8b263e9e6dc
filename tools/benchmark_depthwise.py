#!/usr/bin/env python3
"""Our depthwise gradient beside PyTorch's on this CPU: alone, and in a FocalNet training step.

Both are timed in turn, in one run, and compared as ratios: the machine may be noisy. Results of one
run are in docs/benchmarks.md.
"""
import argparse
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault('GOMP_SPINCOUNT', '20000')  # as tools/train.py

import torch
import torch.nn.functional as F

from backbones import FocalNet
from backbones.ops import depthwise

# (N, C, H = W, k): CONTAINER's and LocalViT's small kernels, FocalNet's large ones.
SHAPES = [(2, 64, 128, 3), (2, 384, 32, 3), (2, 64, 128, 5), (2, 320, 32, 5), (2, 128, 128, 9),
          (2, 128, 128, 13), (2, 256, 64, 11), (2, 512, 32, 13), (2, 1024, 16, 13)]


def seconds(*functions, repeats):
    """The median time of each function, all called in turn ``repeats`` times."""
    times = [[] for _ in functions]
    for function in functions:
        function()
    for _ in range(repeats):
        for function, own in zip(functions, times, strict=True):
            start = time.perf_counter()
            function()
            own.append(time.perf_counter() - start)
    return [statistics.median(own) for own in times]


def weight_gradient(dtype, repeats):
    print(f'\n{dtype}: milliseconds\n'
          '  N    C  HxW  k  forward  weight gradient: stock  ours  ratio')
    for n, c, size, k in SHAPES:
        x = torch.randn(n, c, size, size, dtype=dtype)
        weight = torch.randn(c, 1, k, k, dtype=dtype, requires_grad=True)

        def forward(x=x, weight=weight, k=k, c=c):
            return F.conv2d(x, weight, padding=k // 2, groups=c)

        stock, ours = forward(), depthwise._DepthwiseConv2d.apply(x, weight)
        grad = torch.randn_like(stock)
        times = seconds(
            forward,
            lambda y=stock, w=weight, g=grad: torch.autograd.grad(y, w, g, retain_graph=True),
            lambda y=ours, w=weight, g=grad: torch.autograd.grad(y, w, g, retain_graph=True),
            repeats=repeats)
        f, s, o = (1e3 * t for t in times)
        print(f'{n:3} {c:4} {size:4} {k:2}  {f:7.1f}  {s:22.1f} {o:5.1f} {s / o:6.1f}', flush=True)


def training_step(size, dtype, frozen_stages, repeats):
    """FocalNet-B with the detection kernels, forward and backward."""
    model = FocalNet(embed_dim=128, depths=(2, 2, 18, 2), drop_path_rate=0.,
                     frozen_stages=frozen_stages).train()
    x = torch.randn(2, 3, *size)

    def step(min_kernel_size):
        depthwise.MIN_KERNEL_SIZE = min_kernel_size
        model.zero_grad()
        with torch.autocast('cpu', dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            outs = model(x)
        sum(out.float().mean() for out in outs).backward()

    default = depthwise.MIN_KERNEL_SIZE
    stock, ours = seconds(lambda: step(10**6), lambda: step(default), repeats=repeats)
    depthwise.MIN_KERNEL_SIZE = default
    print(f'FocalNet-B, 2 images of {size[1]}x{size[0]}, {dtype}, frozen_stages={frozen_stages}: '
          f'stock {stock:.2f} s, ours {ours:.2f} s, ratio {stock / ours:.2f}', flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--size', type=int, nargs=2, default=(384, 640), metavar=('H', 'W'),
                        help='image size of the training step (default: 384 640)')
    parser.add_argument('--repeats', type=int, default=3,
                        help='runs whose median is taken (default: 3)')
    args = parser.parse_args()
    print(f'torch {torch.__version__}, {torch.get_num_threads()} threads')
    for dtype in (torch.float32, torch.bfloat16):
        weight_gradient(dtype, args.repeats)
    print()
    training_step(args.size, torch.float32, -1, args.repeats)
    training_step(args.size, torch.bfloat16, -1, args.repeats)
    training_step(args.size, torch.float32, 2, args.repeats)


if __name__ == '__main__':
    main()
