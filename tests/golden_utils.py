"""Compare a model with recorded outputs of the authors' release (files in tests/golden).

The models' weights are a function of their names, so that no weight file is needed.
"""
import json
from pathlib import Path

import pytest
import torch
from torch import nn

from backbones.testing import fill_, rule_value  # noqa: F401  what the golden runs were made with

GOLDEN = Path(__file__).parent / 'golden'


def load_golden(name: str) -> dict:
    return json.loads((GOLDEN / f'{name}.json').read_text())


def golden_input(shape) -> torch.Tensor:
    return torch.randn(tuple(shape), generator=torch.Generator().manual_seed(0))


def entries(state) -> list:
    """A state dict as the golden files list it: [name, shape, dtype], sorted by name."""
    return sorted([key, list(value.shape), str(value.dtype).removeprefix('torch.')]
                  for key, value in state.items())


def with_strides_of_release(monkeypatch, module):
    """Let a family change between tokens and maps by the release's operations.

    The values are the same, and so are gradients in exact arithmetic. But the files were recorded
    with one image on the CPU, where BatchNorm of torch computes a wrong gradient from the strides
    that these operations give it (backbones/layers.py; test_families.py has the right gradients).
    With the same strides ours has the same fault.
    """
    monkeypatch.setattr(module, 'tokens_to_map',
                        lambda x, height, width: x.transpose(1, 2).unflatten(2, (height, width)))
    monkeypatch.setattr(module, 'map_to_tokens', lambda x: x.flatten(2).transpose(1, 2))


def assert_close_to_golden(tensor: torch.Tensor, record: dict, rtol: float = 1e-4):
    """The tensor's shape, sum of magnitudes and sampled values are the recorded ones."""
    assert list(tensor.shape) == list(record['shape'])
    tensor = tensor.detach().double()
    expected = torch.tensor(record['value'], dtype=torch.float64)
    error = (tensor.flatten()[torch.tensor(record['index'])] - expected).abs().max().item()
    assert error <= rtol * max(1., record['std']), f'off by {error:.2e}'
    assert abs(tensor.abs().sum().item() - record['abs_sum']) <= rtol * max(1, record['abs_sum'])


def assert_matches_release(model: nn.Module, golden: dict, forward=None, left_out=()):
    """The model has the release's entries and gives its outputs and gradients.

    Args:
        model: with drop path 0; may lie on the meta device.
        golden: a file of tests/golden.
        forward: ``forward(model, x)`` gives the outputs in the file's order, if not ``model(x)``.
        left_out: prefixes of the release's entries that a backbone does without (its classifier).
    """
    left_out = ('head.', *left_out)
    assert entries(model.state_dict()) == sorted(
        entry for entry in golden['keys'] if not entry[0].startswith(left_out))
    fill_(model).eval()
    for run in golden['runs']:
        x = golden_input(run['input']).requires_grad_('grad' in run)
        with torch.set_grad_enabled('grad' in run):
            outs = forward(model, x) if forward else model(x)
        for out, record in zip(outs, run['outputs'], strict=True):
            assert_close_to_golden(out, record)
        if 'grad' in run:
            model.zero_grad()
            loss = sum(out.double().square().mean() for out in outs)
            loss.backward()
            assert loss.item() == pytest.approx(run['grad']['loss'], rel=1e-5)
            assert_close_to_golden(x.grad, run['grad']['input_grad'])
            parameters = dict(model.named_parameters())
            for key, norm in run['grad']['param_grad_norm'].items():
                assert parameters[key].grad.norm().item() == pytest.approx(norm, rel=1e-3), key


def with_input_of_norm(model: nn.Module, x: torch.Tensor) -> list:
    """A backbone's maps, and before the last of them what its ``norm`` made that map from."""
    seen = []
    handle = model.norm.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    *outs, last = model(x)
    handle.remove()
    before, = seen
    if before.ndim == 3:  # tokens
        before = before.transpose(1, 2).reshape(last.shape)
    return [*outs, before, last]
