"""tools/train.py --log: the curves in other programs, whose packages may be missing."""
import sys
import time
import types
from pathlib import Path

import pytest
from commands import command, refused
from mmengine.config import Config

from downstream.errors import UserError
from downstream.training import tracking
from downstream.training.tracking import TRACKERS, WandbRun, run_name, track, without_trackers

train = command('train')


@pytest.fixture(autouse=True)
def a_name_of_its_own(elsewhere):
    time.sleep(1.01 - time.time() % 1)  # mmengine names runs by the second


def config(**visualizer):
    return Config(dict(visualizer=visualizer, work_dir='work_dirs/mine'), cfg_text='no file',
                  filename='mine.py')


@pytest.fixture
def packages(monkeypatch):
    monkeypatch.setattr(tracking, 'require', lambda *args: None)


def kinds(cfg):
    return [backend['type'] for backend in cfg.visualizer.vis_backends]


def test_several_values_or_several_times():
    for flags in (['--log', 'wandb', 'tensorboard'], ['--log', 'wandb', '--log', 'tensorboard']):
        assert train.parse_args(['c.py', *flags]).log == ['wandb', 'tensorboard']
    assert train.parse_args(['c.py']).log == []


def test_they_come_beside_what_is_there(packages, monkeypatch):
    cfg = config(type='SegLocalVisualizer', vis_backends=[dict(type='LocalVisBackend')])
    track(cfg, [])
    assert kinds(cfg) == ['LocalVisBackend']
    for _ in range(2):  # the config of a run that had them, too
        track(cfg, ['wandb', 'tensorboard'])
        assert kinds(cfg) == ['LocalVisBackend', 'TensorboardVisBackend', 'WandbRun']
    assert cfg.visualizer.vis_backends[2]['init_kwargs'] == dict(
        project='downstream-backbones', name='mine')
    without_trackers(cfg)
    assert kinds(cfg) == ['LocalVisBackend']

    bare = config()
    track(bare, ['tensorboard'])
    assert kinds(bare) == ['LocalVisBackend', 'TensorboardVisBackend']
    monkeypatch.setenv('WANDB_PROJECT', 'cells')
    monkeypatch.setenv('WANDB_NAME', 'third')
    named = config()
    track(named, ['wandb'])
    assert named.visualizer.vis_backends[1]['init_kwargs'] == dict(project='cells', name='third')


def test_a_run_is_called_as_its_experiment():
    cfg = config()
    assert run_name(cfg) == 'mine'
    cfg.work_dir = 'runs/second/'
    assert run_name(cfg) == 'mine second'


@pytest.mark.parametrize('name', TRACKERS)
def test_a_package_that_is_missing(name, detection, monkeypatch):
    _, module, package = TRACKERS[name]
    for part in (module, package):
        monkeypatch.setitem(sys.modules, part, None)
    message = refused(train.main, detection, '--log', name)
    assert f'--log {name} needs a package' in message and f'pip install {package}' in message
    assert not list(Path('work_dirs').rglob('*.log'))  # before anything is built
    # what an earlier run had, as its resolved config says
    cfg = config(vis_backends=[dict(type=TRACKERS[name][0])])
    with pytest.raises(UserError, match=f'pip install {package}'):
        track(cfg, [])


def test_a_folder_of_the_name_is_no_package(tmp_path, monkeypatch):
    (tmp_path / 'some_tracker').mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match='pip install some_tracker'):
        tracking.require('it', 'some_tracker', 'some_tracker')


def test_wandb_without_its_server(monkeypatch, tmp_path):
    """A stand-in that has what mmengine's backend uses, and no key."""
    class Error(Exception):
        pass

    def init(**kwargs):
        if not keys:
            raise Error('No API key configured')
        calls.append(kwargs)

    keys, calls, logged, recorded = [], [], [], []
    wandb = types.SimpleNamespace(
        init=init, errors=types.SimpleNamespace(Error=Error), config=types.SimpleNamespace(
            update=recorded.append), log=lambda values, commit: logged.append(values))
    monkeypatch.setitem(sys.modules, 'wandb', wandb)
    run = WandbRun(str(tmp_path / 'vis_data'), init_kwargs=dict(project='p', name='n'))
    with pytest.raises(UserError, match='No API key configured\nWith WANDB_MODE=offline'):
        run.add_config(Config(dict(a=1)))
    keys.append('key')
    run.add_config(Config(dict(a=1)))
    run.add_scalars(dict(loss=1.5), step=3)
    assert calls == [dict(project='p', name='n', dir=str(tmp_path / 'vis_data'))]
    # (mmengine's own would also ask for the run's log_code, which this stand-in has not.)
    assert recorded == [dict(a=1)] and logged == [dict(loss=1.5)]


@pytest.mark.parametrize('task', ['detection', 'segmentation'])
def test_tensorboard(task, request):
    """What it reads back: the loss at every iteration, the scores, a picture, the config."""
    pytest.importorskip('tensorboard')
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    path = request.getfixturevalue(task)
    train.main([str(path), '--work-dir', 'run', '--log', 'tensorboard', '--cfg-options',
                'default_hooks.visualization.draw=True', 'default_hooks.visualization.interval=1'])
    file, = Path('run').glob('*/vis_data/events*')
    events = EventAccumulator(str(file)).Reload()
    assert [event.step for event in events.Scalars('loss')] == [1, 2]
    score = 'coco/bbox_mAP' if task == 'detection' else 'mIoU'
    assert len(events.Scalars(score)) == 1
    assert events.Tags()['images'] and 'config/text_summary' in events.Tags()['tensors']
    assert list(Path('run').glob('*/vis_data/scalars.json'))

    time.sleep(1.01 - time.time() % 1)
    command('test').main([f'run/{path.name}', 'run/iter_2.pth'])
    assert not list(Path('run/test').rglob('events*'))
