"""Pieces that the families share."""
import torch
from torch import Tensor, nn


class DropPath(nn.Module):
    """Stochastic depth: in training a whole residual branch is dropped, sample by sample.

    What is kept is divided by the keep probability (Huang et al., Deep Networks with Stochastic
    Depth, arXiv 1603.09382).
    """

    def __init__(self, drop_prob: float = 0.):
        super().__init__()
        if not 0 <= drop_prob < 1:
            raise ValueError(f'drop path is a probability from 0 to below 1, not {drop_prob}')
        self.drop_prob = drop_prob

    def forward(self, x: Tensor) -> Tensor:
        if self.drop_prob == 0. or not self.training:
            return x
        keep_prob = 1. - self.drop_prob
        keep = torch.full((x.shape[0], *[1] * (x.ndim - 1)), keep_prob, dtype=x.dtype,
                          device=x.device).bernoulli()
        return x * keep / keep_prob

    def extra_repr(self) -> str:
        return f'drop_prob={self.drop_prob:.3f}'


class Mlp(nn.Module):
    """Two linear layers with a GELU between, over the last dimension."""

    def __init__(self, dim: int, hidden_dim: int, drop: float = 0.):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden_dim)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden_dim, dim)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.fc2(self.drop(self.act(self.fc1(x)))))


def check_stage_lengths(name: str, depths, **per_stage):
    """Raise ValueError unless every per-stage argument has one entry a stage."""
    for argument, values in per_stage.items():
        if len(values) != len(depths):
            raise ValueError(f'{name}: {argument} has {len(values)} entries {tuple(values)}, but '
                             f'there are {len(depths)} stages (depths {tuple(depths)})')


def check_stages(name: str, num_stages: int, out_indices, frozen_stages: int):
    """Raise ValueError unless out_indices and frozen_stages speak of stages that exist."""
    bad = [i for i in out_indices if not 0 <= i < num_stages]
    if bad or not len(out_indices) or list(out_indices) != sorted(set(out_indices)):
        raise ValueError(f'{name}: out_indices must be one or more rising numbers from 0 to '
                         f'{num_stages - 1}, not {tuple(out_indices)}')
    if not -1 <= frozen_stages <= num_stages:
        raise ValueError(f'{name}: frozen_stages must be -1 (none), 0 (the stem) or a number of '
                         f'stages up to {num_stages}, not {frozen_stages}')
