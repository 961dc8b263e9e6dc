"""Another length, another batch: what depends on them follows."""
from pathlib import Path

import pytest
from mmengine.config import Config

from downstream.errors import UserError
from downstream.training.schedules import set_batch, set_length

CONFIGS = Path(__file__).resolve().parents[3] / 'configs'


def load(name):
    return Config.fromfile(CONFIGS / f'{name}.py')


@pytest.mark.parametrize(('epochs', 'steps', 'warm_up'), [
    (36, [27, 33], 1500), (6, [4, 5], 250), (2, [1], 83), (1, [], 42)])
def test_epochs(epochs, steps, warm_up):
    cfg = load('maskrcnn_focalnet_t_1x')  # 12 epochs, steps at 9 and 11, warm-up of 500 iterations
    set_length(cfg, epochs=epochs)
    linear, multi = cfg.param_scheduler
    assert cfg.train_cfg.max_epochs == multi.end == epochs
    assert multi.milestones == steps and linear.end == warm_up


def test_iterations():
    cfg = load('upernet_focalnet_t_160k')
    set_length(cfg, iters=8000)
    linear, poly = cfg.param_scheduler
    assert (cfg.train_cfg.max_iters, cfg.train_cfg.val_interval) == (8000, 800)
    assert (linear.end, poly.end) == (75, 8000)
    assert cfg.default_hooks.checkpoint.interval == 800


def test_what_an_experiment_does_not_count():
    with pytest.raises(UserError, match='--iters: this experiment does not count iters; use --epo'):
        set_length(load('maskrcnn_focalnet_t_1x'), iters=5)
    with pytest.raises(UserError, match='--epochs: this experiment does not count epochs'):
        set_length(load('upernet_focalnet_t_160k'), epochs=5)
    with pytest.raises(UserError, match='from 1 on'):
        set_length(load('maskrcnn_focalnet_t_1x'), epochs=0)


def test_batch():
    """mmengine scales by the images of an iteration; accumulated ones come on top."""
    cfg = load('maskrcnn_focalnet_t_1x')
    note, = set_batch(cfg, 1, 4, world_size=1)
    assert cfg.train_dataloader.batch_size == 1 and cfg.auto_scale_lr.enable
    assert cfg.optim_wrapper.accumulative_counts == 4
    assert cfg.optim_wrapper.optimizer.lr == pytest.approx(4e-4)  # mmengine: x 1 / 16
    assert cfg.train_cfg.max_epochs == 12 and 'rate is 0.25 times its own' in note

    cfg = load('upernet_focalnet_t_160k')
    set_batch(cfg, 4, None, world_size=2)
    assert cfg.train_cfg.max_iters == cfg.param_scheduler[1].end == 320000
    assert 'accumulative_counts' not in cfg.optim_wrapper
    with pytest.raises(UserError, match='--batch 0'):
        set_batch(cfg, 0, None, world_size=1)
