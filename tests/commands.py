"""Commands, called in the process of a test."""
import importlib.util
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from mmengine.registry import MODELS, DefaultScope

from downstream.training.drilling import alive, different_parts
from downstream.training.launching import read_config

TOOLS = Path(__file__).resolve().parents[1] / 'tools'


def command(name):
    """A command's module. (By its file: `test` is another module's name, too.)"""
    spec = importlib.util.spec_from_file_location(f'tools_{name}', TOOLS / f'{name}.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def two_processes(config, *args):
    """tools/dist_train.sh on this machine: two processes of one thread each that must end well."""
    with socket.socket() as free:  # another run of the tests may be using any fixed port
        free.bind(('', 0))
        port = free.getsockname()[1]
    env = {**os.environ, 'PYTHON': sys.executable, 'PORT': str(port), 'OMP_NUM_THREADS': '1',
           'PYTHONPATH': os.getcwd()}
    env.pop('LOCAL_RANK', None)
    done = subprocess.run(
        list(map(str, [TOOLS / 'dist_train.sh', config, '2', *args])),
        env=env, capture_output=True, text=True, timeout=600)  # on a busy machine
    assert done.returncode == 0, done.stderr[-3000:]


def gone(pids, seconds: float) -> bool:
    """Whether they end within that time."""
    end = time.monotonic() + seconds
    while alive(pids) and time.monotonic() < end:
        time.sleep(0.02)
    return not alive(pids)


def weights_of(config, path='weights.pth', seed=0, **options) -> str:
    """A checkpoint of a config's model with random weights; ``options`` as --cfg-options."""
    cfg = read_config(config, options, 'model')
    torch.manual_seed(seed)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        model = MODELS.build(cfg.model)
        model.init_weights()
    torch.save(dict(state_dict=model.state_dict()), path)
    return path


def refused(main, *argv):
    """The message that the tool ends with."""
    with pytest.raises(SystemExit) as stop:
        main([str(arg) for arg in argv])
    assert isinstance(stop.value.code, str)  # printed on stderr, with status 1
    assert stop.value.code.startswith('error: ')
    assert 'Traceback' not in stop.value.code
    return stop.value.code


EPOCHS = '''
_base_ = '{base}'
model = dict(backbone=dict(_delete_=True, type='FocalNet', embed_dim=8, depths=(1, 1, 1, 1),
                           focal_windows=(3, 3, 3, 3), drop_path_rate=0.5))
custom_imports = dict(imports=['backbones', 'downstream'])
train_cfg = dict(_delete_=True, type='EpochBasedTrainLoop', max_epochs=3, val_interval=1)
train_dataloader = dict(batch_size=1, sampler=dict(type='DefaultSampler', shuffle=True))
param_scheduler = [dict(type='LinearLR', start_factor=0.5, by_epoch=False, begin=0, end=4),
                   dict(type='MultiStepLR', by_epoch=True, milestones=[1, 2], gamma=0.5)]
custom_hooks = [dict(type='EMAHook', momentum=0.3)]
log_processor = dict(by_epoch=True)
default_hooks = dict(checkpoint=dict(by_epoch=True, interval=1, max_keep_ckpts=1, save_best='mIoU'))
'''


def in_epochs(base: Path) -> Path:
    """A config beside ``base``: three epochs of two iterations, and all that a state has."""
    path = base.with_name('epochs.py')
    path.write_text(EPOCHS.format(base=base.name))
    return path


def same_state(one: Path, other: Path):
    """Fail unless two checkpoints of trainings have the same state, to the last bit."""
    one, other = torch.load(one), torch.load(other)
    assert not different_parts(one, other)
    assert all(one['meta'][key] == other['meta'][key] for key in ('iter', 'epoch'))
