"""A frozen backbone stays as it is, whatever is trained on it; the linear head is linear."""
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from mmdet.registry import MODELS
from mmengine.config import Config
from torch import nn

from downstream.data.generated import make_demo_data
from downstream.heads.frozen import FrozenBackbone
from downstream.heads.linear import LinearHead
from downstream.scoring import trials

CONFIGS = Path(__file__).resolve().parents[3] / 'configs'


class Net(nn.Module):
    """Something with a backbone that would change in training: BatchNorm and dropout."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5))
        self.head = nn.Conv2d(4, 2, 1)


class FrozenNet(FrozenBackbone, Net):
    pass


def test_training_changes_the_head_alone():
    torch.manual_seed(0)
    net = FrozenNet()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1, weight_decay=0.5)
    net.eval()
    net.train()
    assert net.training and net.head.training
    assert not any(module.training for module in net.backbone.modules())
    net.head(net.backbone(torch.randn(2, 3, 8, 8))).square().mean().backward()
    optimizer.step()
    changed = {key for key, value in net.state_dict().items() if not value.equal(before[key])}
    assert changed == {'head.weight', 'head.bias'}


def test_linear_head_is_a_norm_and_a_linear_map():
    torch.manual_seed(0)
    head = LinearHead(5, in_index=0, num_classes=3, dropout_ratio=0., norm_cfg=dict(type='BN'))
    head.eval()
    maps = torch.randn(2, 5, 4, 6)
    head.bn.running_mean.normal_()
    head.bn.running_var.uniform_(0.5, 2)
    normed = (maps - head.bn.running_mean[:, None, None]) / (
        head.bn.running_var[:, None, None] + head.bn.eps).sqrt()
    expected = torch.einsum('nchw,kc->nkhw', normed, head.conv_seg.weight[..., 0, 0])
    torch.testing.assert_close(head((maps, )), expected + head.conv_seg.bias[:, None, None])


def test_names_are_those_of_the_plain_model():
    cfg = Config.fromfile(CONFIGS / 'demo' / 'retinanet_focalnet.py').model
    plain = MODELS.build(dict(cfg, _scope_='mmdet'))
    frozen = MODELS.build(dict(cfg, type='FrozenRetinaNet', _scope_='mmdet'))
    assert frozen.state_dict().keys() == plain.state_dict().keys()
    assert not any(p.requires_grad for p in frozen.backbone.parameters())


@pytest.mark.parametrize('name', ['demo/linear_focalnet'])
def test_a_step_and_a_test_image(name, tmp_path, monkeypatch):
    make_demo_data(tmp_path / 'set', train=2, val=1)
    monkeypatch.setenv('DEMO_ROOT', str(tmp_path / 'set'))
    found = trials.check_experiment(CONFIGS / f'{name}.py', factor=1.)
    assert 'M parameters, loss' in found


def test_detection_does_not_import_mmseg():
    done = subprocess.run(
        [sys.executable, '-c', 'import downstream, sys; assert "mmseg" not in sys.modules'],
        cwd=CONFIGS.parent)
    assert done.returncode == 0
