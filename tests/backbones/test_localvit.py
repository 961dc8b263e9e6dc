"""LocalViT on DeiT against the authors' release, and locality on its own."""
import pytest
import torch
from golden_utils import assert_matches_release, fill_, load_golden, with_input_of_norm
from torch import nn

from backbones.localvit import ECALayer, LocalityFeedForward, LocalViT

GOLDEN = {
    'localvit_t': dict(),
    'localvit_t_se4': dict(reduction=4),
    'localvit_t_mlp6_relu6': dict(mlp_ratio=6, act='relu6'),
}


def tiny(**kwargs):
    torch.manual_seed(0)
    return LocalViT(**{**dict(img_size=64, embed_dim=16, depth=3, num_heads=2, reduction=8,
                              out_indices=(0, 2)), **kwargs})


@pytest.mark.parametrize('name', GOLDEN)
def test_matches_the_release(name):
    with torch.device('meta'):
        model = LocalViT(**GOLDEN[name])
    assert_matches_release(model, load_golden(name), with_input_of_norm)
