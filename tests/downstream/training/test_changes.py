"""A run that goes on is the experiment that was begun, or it is said what differs."""
import copy
import json
import shutil
import time
from pathlib import Path

import pytest
import torch
from commands import command, refused
from mmengine.optim import CosineAnnealingLR, LinearLR, MultiStepLR, PolyLR

from downstream.training.changes import of_configs, told
from downstream.training.schedules import fast_forward

train = command('train').main

BASE = dict(
    model=dict(type='A', backbone=dict(type='B', depths=[1, 2], init_cfg=dict(checkpoint='x')),
               test_cfg=dict(score_thr=0.1), neck=dict(norm_cfg=dict(type='SyncBN'))),
    train_dataloader=dict(
        batch_size=2, num_workers=4, sampler=dict(type='S', shuffle=True),
        dataset=dict(type='CocoDataset', data_root='here', ann_file='a.json', metainfo={'a': 1},
                     data_prefix=dict(img='images'), pipeline=[dict(type='Flip', prob=0.5)])),
    train_cfg=dict(type='EpochBasedTrainLoop', max_epochs=12, val_interval=1),
    optim_wrapper=dict(type='OptimWrapper', clip_grad=None, optimizer=dict(
        type='AdamW', lr=1e-4, betas=[0.9, 0.999])),
    param_scheduler=[dict(type='LinearLR', end=500), dict(type='MultiStepLR', milestones=[8, 11])],
    auto_scale_lr=dict(enable=False, base_batch_size=16), randomness=dict(seed=1), world_size=8,
    default_hooks=dict(checkpoint=dict(interval=1), logger=dict(interval=50)),
    custom_hooks=[dict(type='NumClassCheckHook')], load_from=None, visualizer=dict(type='V'))


def changed(options, base=BASE):
    cfg = copy.deepcopy(base)
    for key, value in options.items():
        *path, last = key.split('.')
        node = cfg
        for name in path:
            node = node[int(name) if isinstance(node, list) else name]
        node[int(last) if isinstance(node, list) else last] = value
    return cfg


def found(options, base=BASE):
    return {place: (told(old), told(new))
            for place, old, new in of_configs(base, changed(options, base))}


@pytest.mark.parametrize('options', [
    {'train_dataloader.num_workers': 0, 'default_hooks.checkpoint': None, 'load_from': 'x',
     'visualizer.type': 'W', 'custom_hooks': [], 'work_dir': 'y', 'launcher': 'pytorch',
     'env_cfg': 3, 'model.test_cfg.score_thr': 0.2, 'train_cfg.val_interval': 3,
     'model.backbone.use_checkpoint': True, 'strategy': dict(type='PlainFSDPStrategy'),
     'model.backbone.init_cfg': None, 'optim_wrapper.use_fsdp': True, 'val_dataloader': None,
     'optim_wrapper.accumulative_counts': 1, 'auto_scale_lr.base_batch_size': 8},
    {'train_dataloader.dataset.data_root': 'there', 'train_dataloader.dataset.ann_file': '/b.json',
     'train_dataloader.dataset.data_prefix': dict(img='/c'),
     'train_dataloader.dataset.metainfo': None, 'optim_wrapper.optimizer.lr': 0.1 ** 4},
    {'world_size': 4, 'train_dataloader.batch_size': 4},
    {'world_size': 2, 'train_dataloader.batch_size': 4, 'optim_wrapper.accumulative_counts': 2},
    {'model.neck.norm_cfg.type': 'BN', 'model_wrapper_cfg': dict(device_ids=None)},
    # Twice as many accumulated, half an iteration: set_batch has the rate at twice its own.
    {'auto_scale_lr.enable': True, 'optim_wrapper.optimizer.lr': 2e-4, 'world_size': 8,
     'train_dataloader.batch_size': 1, 'optim_wrapper.accumulative_counts': 2},
], ids=['what only looks', 'moved', 'processes', 'processes that accumulate', 'no accelerator',
        'accumulated'])
def test_harmless(options):
    assert found(options) == {}


@pytest.mark.parametrize('options, expected', [
    ({'model.backbone.depths': [2, 2]}, {'model.backbone.depths': ('[1, 2]', '[2, 2]')}),
    ({'model.backbone': dict(type='C', depth=3)}, {'model.backbone.type': ("'B'", "'C'")}),
    ({'model.neck.norm_cfg.type': 'BN'}, {'model.neck.norm_cfg.type': ("'SyncBN'", "'BN'")}),
    ({'train_cfg.max_epochs': 24}, {'train_cfg.max_epochs': ('12', '24')}),
    ({'param_scheduler.1.milestones': [16, 22]},
     {'param_scheduler.1.milestones': ('[8, 11]', '[16, 22]')}),
    ({'param_scheduler': [dict(type='MultiStepLR')]},
     {'param_scheduler': ('2 entries (LinearLR, MultiStepLR)', '1 entries (MultiStepLR)')}),
    ({'optim_wrapper.optimizer.lr': 2e-4},
     {'optim_wrapper.optimizer.lr': ('0.0001', '0.0002')}),
    ({'optim_wrapper.clip_grad': dict(max_norm=1)},
     {'optim_wrapper.clip_grad': ('None', "{'max_norm': 1}")}),
    ({'optim_wrapper.type': 'AmpOptimWrapper', 'optim_wrapper.loss_scale': 'dynamic'},
     {'optim_wrapper.type': ("'OptimWrapper'", "'AmpOptimWrapper'")}),
    ({'train_dataloader.batch_size': 4}, {'images a step': ('16', '32')}),
    ({'world_size': 4}, {'images a step': ('16', '8')}),
    ({'optim_wrapper.accumulative_counts': 2}, {'images a step': ('16', '32')}),
    ({'auto_scale_lr.enable': True, 'world_size': 4},
     {'images a step': ('16', '8'), 'optim_wrapper.optimizer.lr': ('0.0001', '5e-05')}),
    ({'train_dataloader.dataset.pipeline.0.prob': 0.},
     {'train_dataloader.dataset.pipeline.0.prob': ('0.5', '0.0')}),
    ({'train_dataloader.sampler.shuffle': False},
     {'train_dataloader.sampler.shuffle': ('True', 'False')}),
    ({'custom_hooks': [dict(type='EMAHook')]}, {'custom_hooks': ('[]', '1 entries (EMAHook)')}),
    ({'train_cfg': None}, {'train_cfg.max_epochs': ('12', 'None'),
                           'train_cfg.type': ("'EpochBasedTrainLoop'", '(none)')}),
])
def test_another_experiment(options, expected):
    if options == {'train_cfg': None}:  # the type alone tells
        expected.pop('train_cfg.max_epochs')
    assert found(options) == expected


def test_experiments_that_count_iterations_count_images_in_them():
    base = changed({'train_cfg': dict(max_iters=10)})
    assert found({'train_dataloader.batch_size': 1, 'optim_wrapper.accumulative_counts': 2},
                 base) == {'images an iteration': ('16', '8')}


SCHEDULES = [
    lambda of: [LinearLR(of, 0.1, by_epoch=False, end=7), MultiStepLR(of, [2, 4], gamma=0.1)],
    lambda of: [LinearLR(of, 0.1, by_epoch=False, end=4),
                PolyLR(of, eta_min=1e-5, power=0.9, begin=4, end=30, by_epoch=False)],
    lambda of: [CosineAnnealingLR(of, T_max=6, eta_min=1e-3),
                LinearLR(of, 0.5, by_epoch=False, end=12)]]


@pytest.mark.parametrize('build', SCHEDULES, ids=['steps', 'poly', 'cosine'])
@pytest.mark.parametrize('epochs', [0, 4])
@pytest.mark.filterwarnings('ignore:Detected call')
def test_fast_forward(build, epochs):
    """The state of schedulers that were stepped as ParamSchedulerHook does."""
    def new():
        groups = [dict(params=[torch.nn.Parameter(torch.ones(1))], lr=lr) for lr in (0.1, 0.01)]
        optimizer = torch.optim.SGD(groups, lr=1.)
        return optimizer, build(optimizer)

    (stepped, ours), (forwarded, theirs) = new(), new()
    for iteration in range(1, 23):
        for scheduler in ours:
            if not scheduler.by_epoch:
                scheduler.step()
        if epochs and iteration % 5 == 0:
            for scheduler in ours:
                if scheduler.by_epoch:
                    scheduler.step()
    fast_forward(theirs, epochs, 22, 5)
    for one, other in zip(ours, theirs, strict=True):
        assert {**one.state_dict(), 'optimizer': 0} == {**other.state_dict(), 'optimizer': 0}
    rates = [[group['lr'] for group in each.param_groups] for each in (stepped, forwarded)]
    assert rates[0] == rates[1] and (rates[0][0] < 0.1 or not epochs)


def begin(*argv):
    time.sleep(1.01 - time.time() % 1)  # mmengine names runs by the second
    train([str(arg) for arg in argv])


FAST = ('--cfg-options', 'val_dataloader=None', 'val_evaluator=None', 'val_cfg=None')


@pytest.fixture(scope='module')
def kept(tmp_path_factory):
    return tmp_path_factory.mktemp('changes') / 'straight'


@pytest.fixture
def stopped(elsewhere, segmentation, monkeypatch, kept):
    """straight, a run of six iterations, and first, where it was stopped after two."""
    monkeypatch.setattr('yapf.yapflib.yapf_api.FormatCode', lambda text, **_: (text, True))
    config = segmentation.with_name('run.py')
    config.write_text(segmentation.read_text() + '''
param_scheduler = [dict(type='PolyLR', eta_min=0., power=1., by_epoch=False, begin=0, end=7)]
''')
    if not kept.is_dir():  # later tests have the same files at another place
        begin(config, '--work-dir', kept, *FAST, 'train_cfg.max_iters=6')
    shutil.copytree(kept, 'straight')
    Path('first').mkdir()
    shutil.copy('straight/iter_2.pth', 'first')
    shutil.copy('straight/run.py', 'first')
    Path('first/last_checkpoint').write_text(str(Path('first/iter_2.pth').absolute()))
    return config


def rates(work_dir):
    path = next(Path(work_dir).glob('*/vis_data/scalars.json'))
    return [line['lr'] for line in map(json.loads, path.open()) if 'lr' in line]


def log_of(work_dir):
    return next(Path(work_dir).glob('*/*.log')).read_text()


def test_what_differs_is_told(stopped, ade):
    written = Path('first/run.py').read_text()
    images = ade / 'images/train'
    shutil.copy(images / '0.jpg', images / '2.jpg')
    shutil.copy(ade / 'labels/train/0.png', ade / 'labels/train/2.png')
    classes = "train_dataloader.dataset.metainfo.classes=('wall','door')"
    message = refused(train, stopped, '--work-dir', 'first', '--resume', *FAST,
                      'train_cfg.max_iters=8', 'randomness.seed=3', classes)
    assert message.splitlines() == [
        'error: the latest checkpoint in first is of another experiment than this one. What '
        'differs:',
        "  names of classes: ['building'] -> ['door']",
        '  training images: 2 -> 3',
        '  train_cfg.max_iters: 6 -> 8',
        '  randomness.seed: 0 -> 3',
        'With --allow-changes the run goes on all the same, with what is set now.']
    assert Path('first/run.py').read_text() == written  # of the run that is there
    (images / '2.jpg').unlink(), (ade / 'labels/train/2.png').unlink()
    (images / '1.jpg').rename(images / '3.jpg')
    (ade / 'labels/train/1.png').rename(ade / 'labels/train/3.png')
    message = refused(train, stopped, '--work-dir', 'first', '--resume', *FAST,
                      'train_cfg.max_iters=6', 'model.decode_head.channels=16')
    assert 'names, classes or boxes of training images: as recorded -> others' in message
    assert 'model.decode_head.channels: 8 -> 16' in message and '--allow-changes' not in message
    assert 'begin another run' in message


def test_a_longer_schedule_from_the_middle(stopped):
    """The rate is that of a run which had the schedule from its beginning; so is the seed."""
    begin(stopped, '--work-dir', 'first', '--resume', '--allow-changes', *FAST,
          'train_cfg.max_iters=4', 'param_scheduler.0.end=13', 'optim_wrapper.optimizer.lr=0.012',
          'optim_wrapper.optimizer.weight_decay=0.5', 'randomness.seed=3')
    assert rates('straight') == pytest.approx([1e-3 * (6 - i) / 6 for i in range(6)])
    assert rates('first') == pytest.approx([0.010, 0.009])
    log = log_of('first')
    assert 'optim_wrapper.optimizer.lr: 0.001 -> 0.012' in log
    assert 'goes on at 0.01, where it was 0.000666667' in log
    last = torch.load('first/iter_4.pth', weights_only=False)
    assert last['optimizer']['param_groups'][0]['weight_decay'] == 0.5
    assert last['optimizer']['state'][0]['step'] == 4 and last['meta']['seed'] == 3
    # Another optimizer, which cannot take that state.
    begin(stopped, '--work-dir', 'first', '--resume', '--allow-changes', *FAST,
          'train_cfg.max_iters=5', 'default_hooks.checkpoint.interval=1',
          'optim_wrapper.optimizer.type=SGD', 'randomness.seed=3',
          'optim_wrapper.optimizer.momentum=0.9')
    assert torch.load('first/iter_5.pth', weights_only=False)['optimizer']['state'][0].keys() == {
        'momentum_buffer'}
    assert 'The optimizer is another one: its state begins anew.' in ''.join(
        path.read_text() for path in Path('first').glob('*/*.log'))


def test_moved_and_unchanged(stopped, ade, monkeypatch):
    """The same files elsewhere, other workers: the run goes on, to the same weights."""
    moved = ade.rename(ade.with_name('moved'))
    monkeypatch.setenv('ADE20K_ROOT', str(moved))
    begin(stopped, '--work-dir', 'first', '--resume', *FAST, 'train_cfg.max_iters=6',
          'train_dataloader.num_workers=1', 'default_hooks.logger.interval=2')
    assert 'differs' not in log_of('first') and 'could not be compared' not in log_of('first')
    one, other = (torch.load(f'{name}/iter_6.pth', weights_only=False)['state_dict']
                  for name in ('straight', 'first'))
    assert all(value.equal(other[name]) for name, value in one.items())


def test_checkpoints_without_a_record_and_hostile_ones(stopped):
    state = torch.load('first/iter_2.pth', weights_only=False)
    run = "__import__('pathlib').Path('made').touch()"
    for text, said in ((None, 'no readable record of its config'),
                       (f'train_cfg = {run}', 'train_cfg')):
        state['meta'].update(cfg=text, config=run)  # mmengine runs 'config'
        del state['meta']['cfg' if text is None else 'data']
        torch.save(state, 'other.pth')
        if text is None:
            begin(stopped, '--work-dir', 'other', '--resume', 'other.pth', *FAST,
                  'train_cfg.max_iters=3')
            assert said in log_of('other')
        else:
            assert said in refused(train, stopped, '--work-dir', 'hostile', '--resume', 'other.pth',
                                   *FAST)
            assert not Path('hostile/run.py').exists()
    assert not Path('made').exists()


def test_allow_changes_alone(elsewhere, segmentation):
    assert '--allow-changes' in refused(train, segmentation, '--allow-changes')
