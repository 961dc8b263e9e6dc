"""A training that loses its numbers."""
import math
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from commands import command, in_epochs, refused
from mmengine.logging import MMLogger
from mmengine.optim import OptimWrapper
from mmengine.runner import find_latest_checkpoint
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from torch import nn

from downstream.errors import UserError
from downstream.training.nonfinite import SkipNonFinite

train = command('train').main


@pytest.fixture(autouse=True)
def on_one_thread(elsewhere, monkeypatch):
    monkeypatch.setattr('yapf.yapflib.yapf_api.FormatCode', lambda text, **_: (text, True))


def spoil(monkeypatch, iterations, owner=BaseDecodeHead, method='loss_by_feat', factor=math.nan):
    """Let a method's results be multiplied in some iterations, counted from 0."""
    calls, before = [], getattr(owner, method)

    def call(self, *args, **kwargs):
        calls.append(0)
        result = before(self, *args, **kwargs)
        if len(calls) - 1 not in iterations:
            return result
        return {key: factor * value for key, value in result.items()} if isinstance(
            result, dict) else factor * result

    monkeypatch.setattr(owner, method, call)


def test_one_bad_iteration_leaves_no_trace(segmentation, monkeypatch, capfd):
    """Another iteration is lost, nothing else: weights and BatchNorm's statistics are finite."""
    spoil(monkeypatch, [1], nn.Conv2d, 'forward')
    train([str(segmentation), '--work-dir', 'run', '--cfg-options', 'train_cfg.max_iters=3',
           'train_cfg.val_interval=9', 'default_hooks.checkpoint.interval=3'])
    state = torch.load(find_latest_checkpoint('run'))
    assert all(value.isfinite().all() for value in state['state_dict'].values())
    said = ''.join(capfd.readouterr())
    left_out = re.findall(r'Iteration (\d+) is left out \((\d+) in a row\): (.*) not finite\. '
                          r'Images: (.*)', said)
    assert [(found[0], found[1]) for found in left_out] == [('1', '1')]
    assert 'decode.loss_ce' in left_out[0][2]
    assert sorted(Path(name).name for name in left_out[0][3].split(', ')) == ['0.jpg', '1.jpg']
    counts = {int(value) for key, value in state['state_dict'].items() if 'num_batches' in key}
    assert counts == {2}


def test_too_many(segmentation, monkeypatch):
    """It stops, tells from what and where, and the iteration can be repeated."""
    config = in_epochs(segmentation)
    spoil(monkeypatch, range(2, 99))
    options = '--cfg-options', 'max_nonfinite=3'
    message = refused(train, config, '--work-dir', 'run', *options)
    assert '3 steps in a row were not finite; iteration 5 was the last' in message
    assert 'losses: ' in message and 'decode.loss_ce nan' in message
    image, = re.findall(r'images: .*/(\d\.jpg)\n', message)
    assert 'not finite, while the outputs of all layers are' in message
    assert 'learning rate: ' in message
    good, bad = torch.load('run/epoch_2.pth'), torch.load('run/nonfinite.pth')
    raw = {key: value for key, value in good['ema_state_dict'].items() if key != 'steps'}
    assert all(value.equal(bad['ema_state_dict'][key]) for key, value in raw.items())
    assert (bad['meta']['epoch'], bad['meta']['iter']) == (2, 4)
    assert Path(find_latest_checkpoint('run')).name != 'nonfinite.pth'
    again = refused(train, config, '--work-dir', 'again', '--resume', 'run/nonfinite.pth',
                    '--cfg-options', 'max_nonfinite=1')
    assert '1 steps in a row were not finite; iteration 5 was the last' in again
    assert re.findall(r'images: .*/(\d\.jpg)\n', again) == [image]


def test_a_rate_that_is_too_high(segmentation):
    """No stand-in: the weights grow until a layer's output overflows."""
    message = refused(train, segmentation, '--work-dir', 'run', '--cfg-options',
                      'optim_wrapper.optimizer.type=SGD', 'optim_wrapper.optimizer.lr=1e30',
                      'optim_wrapper.clip_grad=None', 'train_cfg.max_iters=99',
                      'train_cfg.val_interval=99', 'default_hooks.checkpoint.interval=99')
    assert '10 steps in a row were not finite; iteration ' in message
    assert re.search(r'first: the output of \S+ \(\w+\)\n', message)


class Scaler:
    """torch's, of which the CPU build has none: it leaves out a step, and halves its scale."""

    def __init__(self, scale, overflows):
        self.scale, self.overflows = scale, overflows

    def is_enabled(self):
        return True

    def get_scale(self):
        return self.scale


class Wrapped(OptimWrapper):

    def step(self, **kwargs):
        if self.loss_scaler.overflows.pop(0):
            self.loss_scaler.scale /= 2


@pytest.mark.parametrize('scale, loss, message', [
    (2.**16, 1., None),  # as at the begin of any training
    (1., 1., 'the gradients overflow float16 at any scale of the loss'),
    (2.**16, math.nan, '2 steps in a row were not finite'),
])
def test_overflows_are_told_apart(scale, loss, message, monkeypatch):
    model = nn.Linear(1, 1)
    wrapper = Wrapped(torch.optim.SGD(model.parameters(), lr=1.))
    wrapper.loss_scaler = Scaler(scale, [True] * 9)
    saved = []
    runner = SimpleNamespace(
        model=model, optim_wrapper=wrapper, iter=0, epoch=0, work_dir='run',
        logger=MMLogger.get_instance('overflow'), save_checkpoint=lambda *a, **k: saved.append(a))
    monkeypatch.setattr('downstream.training.nonfinite.first_nonfinite', lambda *_: 'here')
    hook = SkipNonFinite(2)
    hook.before_train(runner)

    def iterate():
        hook.before_train_iter(runner, 0)
        wrapper._inner_count = wrapper._inner_count + 1
        wrapper.step()
        hook.after_train_iter(runner, 0, {}, dict(loss=torch.tensor(loss)))

    if message is None:
        for _ in range(9):
            iterate()
        assert not saved and hook.count == 0
        return
    with pytest.raises(UserError, match=message):
        for _ in range(9):
            iterate()
    assert saved == [('run', 'nonfinite.pth')]
