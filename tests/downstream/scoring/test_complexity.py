"""Costs: what is counted, against hand and upstream's counter, and what the papers print."""
import complexity as tool
import pytest
import torch
from mmengine.analysis import FlopAnalyzer
from mmengine.config import Config
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from downstream.experiments import CONFIGS
from downstream.scoring import complexity, ledger


@pytest.mark.parametrize('name', [
    'maskrcnn_focalnet_s_1x', 'cascade_maskrcnn_focalnet_t_3x', 'atss_focalnet_t_3x',
    'upernet_focalnet_b_160k', 'sparsercnn_focalnet_t_3x', 'maskrcnn_focalnet_t_1x'])
def test_as_printed_or_explained(name):
    cost = complexity.complexity(
        Config.fromfile(CONFIGS / f'{name}.py', import_custom_modules=False))
    entry = ledger.find(ledger.load(), name)
    assert bool(complexity.differences(cost, ledger.published_cost(entry))) == (
        'Discrepancy' in entry)
    assert entry['Cost']['Parameters (M)'] == pytest.approx(cost['params'] / 1e6, abs=0.006)
    assert entry['Cost']['FLOPs (G)'] == pytest.approx(cost['flops'] / 1e9, abs=0.06)
    assert sum(cost['parts'].values()) == cost['params']


def test_every_printed_cost_is_met_or_explained():
    """By what tools/complexity.py --write left in the metafile."""
    for entry in ledger.load()['Models']:
        cost = dict(params=entry['Cost']['Parameters (M)'] * 1e6,
                    flops=entry['Cost']['FLOPs (G)'] * 1e9)
        assert bool(complexity.differences(cost, ledger.published_cost(entry))) == (
            'Discrepancy' in entry), entry['Name']


def flops(model, x):
    counter = FlopCounterMode(display=False, custom_mapping=complexity.COUNTERS)
    with torch.no_grad(), counter:
        model(x)
    return counter.get_total_flops() // 2


def test_by_hand():
    """A convolution, a norm, a linear layer and fused attention."""
    conv = nn.Conv2d(3, 8, 3, padding=1)
    assert flops(conv, torch.rand(1, 3, 10, 12)) == 10 * 12 * 8 * 27
    assert flops(nn.LayerNorm(16), torch.rand(5, 16)) == 5 * 80
    assert flops(nn.BatchNorm2d(4).eval(), torch.rand(1, 4, 6, 6)) == 2 * 144
    assert flops(nn.Linear(16, 32), torch.rand(7, 16)) == 7 * 16 * 32
    q = torch.rand(1, 2, 50, 8)
    for device in ('cpu', 'meta'):
        assert flops(lambda x: nn.functional.scaled_dot_product_attention(x, x, x),
                     q.to(device)) == 2 * 2 * 50 * 50 * 8
    # our own operation costs what the stock one does
    from backbones.ops.depthwise import DepthwiseConv2d
    assert flops(DepthwiseConv2d(8, 7), torch.rand(1, 8, 10, 10)) == 8 * 49 * 100


def test_as_upstream_counts():
    """mmengine's counter, where it knows all operations (it does not know nearest interpolation's
    new form, nor fused attention)."""
    cfg = Config.fromfile(CONFIGS / 'retinanet_pvt_t_1x.py', import_custom_modules=False)
    model = complexity.build(cfg, 'cpu')
    x = torch.rand(1, 3, 64, 96)
    upstream = FlopAnalyzer(model, x)
    upstream.unsupported_ops_warnings(False).uncalled_modules_warnings(False)
    assert flops(model, x) == pytest.approx(upstream.total(), rel=1e-3)


def test_activations_are_those_that_training_keeps():
    """A linear layer keeps its input, GELU its own input; parameters are not counted."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 2)

        def extract_feat(self, x):
            return self.second(nn.functional.gelu(self.first(x)))

    # the input, the first layer's output, GELU's output
    assert complexity.saved_bytes(Model(), torch.rand(5, 4)) == 4 * 5 * (4 + 6 + 6)


def test_differences():
    cost = dict(params=49.43e6, flops=271.1e9)
    assert complexity.differences(cost, dict(params=49.4, flops=271)) == []
    found, = complexity.differences(cost, dict(params=48.8, flops=268))
    assert found == 'params 49.4, printed 48.8 (+1.3%)'
    assert complexity.differences(cost, dict(flops=260)) == [
        'flops 271.1, printed 260 (+4.3%)']


def test_wrong_use(capsys):
    with pytest.raises(SystemExit, match='there is no config file nowhere.py'):
        tool.main(['nowhere.py'])
    with pytest.raises(SystemExit):
        tool.main([])
    assert 'name configs, or give --all' in capsys.readouterr().err
