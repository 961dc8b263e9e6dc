"""--cfg-options: a value takes the place of one of its kind."""
import pytest
from mmengine.config import Config

from downstream.errors import UserError
from downstream.training.options import merge_options


def config():
    return Config(dict(
        train_cfg=dict(type='EpochBasedTrainLoop', max_epochs=12, val_interval=1),
        model=dict(type='A', backbone=dict(type='B', depth=50, ratio=1, out=(0, 1), rate=0.1,
                                           norm=dict(type='BN'), frozen=None, eval=True)),
        train_dataloader=dict(batch_size=2, num_workers=4, dataset=dict(
            ann_file='a.json', pipeline=[dict(type='Resize', scale=(640, 480))])),
        optim_wrapper=dict(optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.99)),
                           clip_grad=None, loss_scale='dynamic'),
        param_scheduler=[dict(type='MultiStepLR', milestones=[8, 11], gamma=1)],
        default_hooks=dict(checkpoint=dict(interval=1)), val_evaluator=dict(metric='bbox')))


@pytest.mark.parametrize('key, value, has', [
    ('train_cfg.max_epochs', 'abc', '12'), ('train_cfg.max_epochs', 1.5, 'whole numbers from 1'),
    ('train_cfg.max_epochs', 0, 'whole numbers from 1'), ('train_cfg.max_epochs', True, '12'),
    ('train_cfg.val_interval', -1, 'whole'), ('train_cfg.type', 5, "'EpochBasedTrainLoop'"),
    ('train_dataloader.batch_size', 0, 'whole'), ('train_dataloader.num_workers', 'x', '4'),
    ('train_dataloader.num_workers', -1, 'from 0'), ('train_dataloader', 'abc', 'a dict'),
    ('train_dataloader.dataset.ann_file', 5, "'a.json'"),
    ('train_dataloader.dataset.ann_file', False, "'a.json'"),
    ('train_dataloader.dataset.pipeline', 'x', 'a list of dicts'),
    ('train_dataloader.dataset.pipeline.0', 3, 'Resize'),
    ('train_dataloader.dataset.pipeline.0.scale', (1, 'x'), '(640, 480)'),
    ('train_dataloader.dataset.pipeline.0.scale', 'x', 'a list of numbers'),
    ('model.backbone.norm', 'BN', 'a dict'), ('model.backbone.norm', False, 'a dict'),
    ('model.backbone.rate', 'high', '0.1'), ('model.backbone.rate', [0.1, 'x'], '0.1'),
    ('model.backbone.eval', 'yes', 'True or False'), ('model.backbone.eval', 2, 'True or False'),
    ('model.backbone.depth', [True], '50'), ('param_scheduler', 'abc', 'a list of dicts'),
    ('param_scheduler.0.milestones', 'abc', '[8, 11]'), ('resume', 'abc', 'True or False'),
    ('param_scheduler.0.end', 1.5, 'whole'), ('val_evaluator.metric', 5, "'bbox'"),
    ('optim_wrapper.optimizer.lr', 'abc', '0.0001'), ('default_hooks', 3, 'a dict'),
    ('default_hooks.checkpoint.interval', 0, 'whole'), ('a..b', 3, 'no name'), ('', 3, 'no name'),
    ('modle.type', 'A', "did you mean 'model'"), ('model.type.x', 3, 'does not fit'),
])
def test_another_kind(key, value, has):
    with pytest.raises(UserError) as error:
        merge_options(config(), {'train_cfg.max_epochs': 3, key: value} if 'max' not in key
                      else {key: value})
    assert f'--cfg-options {key}' in str(error.value) or has == 'does not fit'
    assert has in str(error.value) and (str(value) in str(error.value) or "did you" in has
                                        or has == 'does not fit')


@pytest.mark.parametrize('options', [
    {'train_cfg.max_epochs': 3}, {'model.backbone.ratio': 0.5}, {'model.backbone.rate': 1},
    {'model.backbone.frozen': 'all'}, {'model.backbone.norm': None}, {'model.backbone.eval': 0},
    {'optim_wrapper.loss_scale': 512.}, {'optim_wrapper.accumulative_counts': 2},
    {'optim_wrapper.optimizer.betas': [0.9, 1]}, {'model.backbone.out': [0, 1, 2, 3]},
    {'train_dataloader.dataset.pipeline.0.scale': 640}, {'val_evaluator.metric': ['bbox', 'segm']},
    {'train_dataloader.dataset.pipeline': []}, {'default_hooks.checkpoint.interval': -1},
    {'model.backbone.type': 'C', 'model.backbone.depth': 'deep'},
    {'load_from': 'x', 'resume': True},
    {'model.backbone.norm._delete_': True, 'model.backbone.norm.type': 'GN'},
    {'param_scheduler.0.gamma': 0.1}, {'compile': True}, {'model.new': 'x'},
], ids=str)
def test_of_the_kind(options):
    cfg = config()
    merge_options(cfg, dict(options))
    for key, value in options.items():
        if not key.endswith(('_delete_',)):
            assert cfg.get(key) == value if '.' not in key else found(cfg, key) == value


def found(cfg, key):
    for name in key.split('.'):
        cfg = cfg[int(name)] if isinstance(cfg, list) else cfg[name]
    return cfg


def test_a_whole_number_in_another_notation():
    cfg = config()
    merge_options(cfg, {'train_cfg.max_epochs': 1e2, 'train_dataloader.batch_size': 4.})
    assert str(cfg.train_cfg.max_epochs) == '100' and str(cfg.train_dataloader.batch_size) == '4'
