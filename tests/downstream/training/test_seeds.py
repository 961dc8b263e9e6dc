"""A run that was stopped and resumed is the run that was not stopped: losses, weights, state."""
import os
import time
from importlib.metadata import distributions
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import command
from mmengine.runner import find_latest_checkpoint

from downstream.training.seeds import NumberedIndex, NumberedSampler, seed_everything

ROOT = Path(__file__).resolve().parents[3]
FORK = any(found.name == 'onedl-mmengine' for found in distributions())
CHANGES = '''
_base_ = '{base}'
randomness = dict(seed=None)  # the checkpoint alone knows the seed
custom_hooks = [dict(type='EMAHook', momentum=0.3)]
val_cfg = val_dataloader = val_evaluator = None
model = dict(backbone=dict(_delete_=True, type='FocalNet', embed_dim=8, depths=(1, 1, 1, 1),
                           focal_windows=(3, 3, 3, 3), drop_path_rate=0.5))
custom_imports = dict(imports=['backbones', 'downstream'])
'''
EPOCHS = '''
train_cfg = dict(_delete_=True, type='EpochBasedTrainLoop', max_epochs=6)
train_dataloader = dict(batch_size=1, num_workers=2, persistent_workers=True,
                        sampler=dict(type='DefaultSampler', shuffle=True))
default_hooks = dict(checkpoint=dict(by_epoch=True, interval=1))
'''
WORKERS = 'train_dataloader = dict(num_workers=2, persistent_workers=True)\n'


def train(config, work_dir, *argv):
    time.sleep(1.01 - time.time() % 1)  # mmengine names runs by the second
    command('train').main([str(config), '--work-dir', work_dir, *argv])


@pytest.mark.parametrize('task, changes, length', [
    ('detection', '', 'max_iters'),  # samples boxes, in the process that loads the data
    pytest.param('segmentation', WORKERS, 'max_iters', marks=pytest.mark.skipif(
        not FORK,
        reason='the original mmengine starts workers before the first iteration has its seed')),
    ('segmentation', EPOCHS, 'max_epochs'),
], ids=['iterations', 'iterations, workers', 'epochs, workers'])
def test_resuming_changes_nothing(request, tmp_path, monkeypatch, task, changes, length):
    """With flips, drop path, AdamW, a schedule, averaged weights, and no seed in the config."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('LOCAL_RANK', '0')
    monkeypatch.setattr('yapf.yapflib.yapf_api.FormatCode', lambda text, **_: (text, True))
    monkeypatch.setattr('torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL', 0.1)  # at their end
    base = request.getfixturevalue(task)
    config = base.with_name('resumed.py')
    config.write_text(CHANGES.format(base=base.name) + changes)
    if task == 'segmentation':
        with open(config, 'a') as file:
            file.write("load = [dict(type='LoadImageFromFile'), dict(type='LoadLabels')]\n"
                       "train_dataloader['dataset'] = dict(pipeline=[*load, dict(type='RandomFlip',"
                       " prob=0.5), dict(type='PackSegInputs')])\n" if changes else '')
    length = f'train_cfg.{length}'
    train(config, 'straight', '--cfg-options', f'{length}=5', 'randomness.seed=7')
    train(config, 'stopped', '--cfg-options', f'{length}=2', 'randomness.seed=7')
    train(config, 'stopped', '--resume', '--allow-changes', '--cfg-options', f'{length}=5')

    straight, stopped = (torch.load(find_latest_checkpoint(work_dir))
                         for work_dir in ('straight', 'stopped'))
    losses = [run['message_hub']['log_scalars']['train/loss'].data[0]
              for run in (straight, stopped)]
    assert len(losses[0]) == (10 if changes == EPOCHS else 5)
    np.testing.assert_array_equal(*losses)
    assert len(set(losses[0])) == len(losses[0])
    for part in ('state_dict', 'ema_state_dict'):
        assert straight[part].keys() == stopped[part].keys()
        assert all(value.equal(stopped[part][name]) for name, value in straight[part].items())
    averaged, raw = straight['state_dict'], straight['ema_state_dict']
    assert raw['steps'] == len(losses[0])
    assert not averaged['backbone.patch_embed.proj.weight'].equal(
        raw['module.backbone.patch_embed.proj.weight'])
    for number, moments in straight['optimizer']['state'].items():
        assert all(value.equal(stopped['optimizer']['state'][number][name])
                   for name, value in moments.items())
    assert straight['param_schedulers'] == stopped['param_schedulers']
    assert straight['message_hub']['runtime_info'].keys() == (
        stopped['message_hub']['runtime_info'].keys())


def test_deterministic(segmentation, tmp_path, monkeypatch):
    """One seed: equal losses and weights, however many workers load; another: others."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('LOCAL_RANK', '0')
    monkeypatch.delenv('CUBLAS_WORKSPACE_CONFIG', raising=False)
    monkeypatch.setattr('yapf.yapflib.yapf_api.FormatCode', lambda text, **_: (text, True))
    monkeypatch.setattr('torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL', 0.1)
    config = segmentation.with_name('deterministic.py')
    config.write_text(CHANGES.format(base=segmentation.name) + EPOCHS + (
        "load = [dict(type='LoadImageFromFile'), dict(type='LoadLabels')]\n"
        "train_dataloader['dataset'] = dict(pipeline=[*load, dict(type='RandomFlip', prob=0.5), "
        "dict(type='PackSegInputs')])\n"))
    runs = {}
    try:
        for seed, workers in ((None, 0), (0, 1), (0, 2), (1, 0)):
            name = f'{seed}-{workers}'
            train(config, name, '--deterministic', '--cfg-options', 'train_cfg.max_epochs=2',
                  f'randomness.seed={seed}', f'train_dataloader.num_workers={workers}',
                  f'train_dataloader.persistent_workers={workers > 0}')
            assert torch.are_deterministic_algorithms_enabled()
            assert torch.backends.cudnn.deterministic and not torch.backends.cudnn.benchmark
            state = torch.load(find_latest_checkpoint(name))
            runs[name] = (list(state['message_hub']['log_scalars']['train/loss'].data[0]),
                          state['state_dict'])
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.deterministic = False
        os.environ.pop('CUBLAS_WORKSPACE_CONFIG', None)
    (losses, weights), *others, (other_losses, _) = runs.values()
    assert len(set(losses)) == len(losses) == 4
    for found, state in others:
        assert found == losses
        assert all(value.equal(state[name]) for name, value in weights.items())
    assert other_losses != losses


def test_indices_keep_their_number_on_the_way_to_a_worker():
    class Even(torch.utils.data.Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, index):
            return index, index.number

    sampler = NumberedSampler([4, 0, 2])
    sampler.number = 7
    loader = torch.utils.data.DataLoader(Even(), batch_sampler=torch.utils.data.BatchSampler(
        sampler, 2, False), num_workers=1)
    assert [batch[0].tolist() + batch[1].tolist() for batch in loader] == [[4, 0, 7, 8], [2, 9]]
    assert sampler.number == 10
    assert NumberedIndex(3, 5) == 3 and [0, 1, 2, 'x'][NumberedIndex(3, 5)] == 'x'


def test_draws_differ_from_number_to_number():
    seen = set()
    for numbers in ((0, 0, 1), (0, 1, 1), (1, 0, 1), (0, 0, 2)):
        for _ in range(2):
            seed_everything(*numbers)
            seen.add((np.random.rand(), torch.rand(()).item()))
    assert len(seen) == 4
