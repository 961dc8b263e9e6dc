"""Configs and flags that are wrong end the tools with one clear message."""
from pathlib import Path

import pytest
from commands import command, refused, weights_of

from downstream.training import launching

ROOT = Path(__file__).resolve().parents[3]
train, score = command('train').main, command('test').main
pytestmark = pytest.mark.usefixtures('elsewhere')


def test_unknown_config_suggests_close_names():
    known = next(iter(sorted(ROOT.glob('configs/*.py'))), None)
    message = refused(train, f'configs/{known.stem}x.py' if known else 'configs/x.py')
    assert 'there is no config file configs/' in message
    assert not known or f'{known.stem}.py' in message.split('did you mean')[1]


@pytest.mark.parametrize('text, fragments', [
    ('a = 1\nmodel = dict(\n', ['bad.py is not a Python file: line 2', 'never closed']),
    ("_base_ = ['missing.py']\n", ['missing.py', 'a _base_ of', 'bad.py']),
    ("_base_ = 'broken_base.py'\n", ['broken_base.py is not a Python file: line 3']),
    ('a = 1\nb = c\n', ['bad.py, line 2', "name 'c' is not defined"]),
    ("_base_ = 'base.py'\nmodel = dict(a=1)\n", ['bad.py', 'model', '_delete_']),
    ("_base_ = __import__('downstream').inherit('maskrcnn_focalnet_t1x.py')\n",
     ['bad.py: the project has no config', 'did you mean maskrcnn_focalnet_t_1x.py or']),
    ("custom_imports = dict(imports=['no_such_module'])\n",
     ['bad.py', 'custom_imports cannot be imported', 'no_such_module']),
])
def test_malformed_config(tmp_path, text, fragments):
    (tmp_path / 'base.py').write_text('model = 3\n')
    (tmp_path / 'broken_base.py').write_text('a = 1\n\nb = = 2\n')
    (tmp_path / 'bad.py').write_text(text)
    message = refused(train, 'bad.py')
    assert all(fragment in message for fragment in fragments), message


@pytest.mark.parametrize('option, fragments', [
    ('train_cfg.max_iters', ['KEY=VALUE']),
    ('train_cfg.max_iters=[1,(2]', ['KEY=VALUE', 'brackets']),
    ('modle.backbone.depth=18', ["no 'modle'", "did you mean 'model'"]),
    ('model.backbone.depth.x=18', ['does not fit the config', 'depth']),
    ('param_scheduler.7.begin=1', ['does not fit the config', '7']),
    ('model.backbone.dept=18', ['cannot be built', "'dept'"]),
    ('model.backbone.type=ResNot', ['cannot be built', 'ResNot is not in the']),
    ('train_dataloader.dataset.type=CocoDaset', ['cannot be built', 'CocoDaset is not in the']),
    ('optim_wrapper.optimizer.type=Adamm', ["there is no optimizer 'Adamm'"]),
    ('model=foo', ["'model' is 'foo', not a dict"]),
    ('load_from=5', ['load_from is 5, not the path']),
    ('custom_imports.imports=no_such_module', ['cannot be imported', 'no_such_module']),
    ('launcher=pytorch', ['--launcher sets it']),
    # What the libraries' constructors, the data loader and the first step do not take.
    ('train_dataloader.batchsize=2', ['with --cfg-options train_dataloader.batchsize=2',
                                      "unexpected keyword argument 'batchsize'"]),
    ('train_dataloader.dataset.pipeline.3.prob=2', ['prob=2: RandomFlip cannot be built']),
    ('model.neck.num_outs=1', ['model.neck.num_outs=1: FPN cannot be built: AssertionError']),
    ('optim_wrapper.optimizer.lr=-1', ['AdamW cannot be built: ValueError: Invalid learning']),
    ('optim_wrapper.clip_grad.max_nrm=1', ["unexpected keyword argument 'max_nrm'"]),
    ('randomness.sed=3', ["unexpected keyword argument 'sed'", 'DOWNSTREAM_TRACEBACK=1']),
])
def test_bad_cfg_options(detection, option, fragments):
    message = refused(train, detection, '--cfg-options', 'train_cfg.val_interval=1', option)
    assert all(fragment in message for fragment in fragments), message


def test_bad_cfg_options_of_other_tools(detection):
    weights_of(detection)
    for main, rest, option, said in (
            (score, [], 'test_evaluator.metric=foo', "CocoMetric cannot be built: KeyError"),
            (score, [], 'test_dataloader.batch_size=0', 'whole numbers from 1 on'),
            (command('predict').main, ['coco/val', '-o', 'out'], 'model.test_cfg.rcnn=None',
             'with --cfg-options model.test_cfg.rcnn=None: AssertionError'),
            (command('predict').main, ['coco/val', '-o', 'out'], 'default_scope=5', 'not text')):
        message = refused(main, detection, 'weights.pth', *rest, '--cfg-options', option)
        assert said in message and option in message


@pytest.mark.parametrize('part', ['schedules/1x.py', 'models/maskrcnn.py'])
def test_a_part_of_an_experiment(part):
    message = refused(train, ROOT / 'configs/_base_' / part)
    assert 'is no experiment that this tool can run' in message and 'None, not a dict' in message


def test_outputs_that_cannot_be_written(detection):
    Path('file').touch()
    assert '--work-dir: the folder file' in refused(train, detection, '--work-dir', 'file')
    assert '--out: the folder' in refused(score, detection, 'file', '--out', 'file/r.pkl')
    assert '--show-dir: the folder file' in refused(score, detection, 'file', '--show-dir', 'file')


def test_flags_that_ask_for_what_is_not_there(detection):
    no_tta = detection.with_name('no_tta.py')
    no_tta.write_text(f"_base_ = '{detection.name}'\ntta_model = None\n"
                      'auto_scale_lr = dict(_delete_=True)\n'
                      'default_hooks = dict(_delete_=True)\n')
    Path('any.pth').touch()
    assert 'has no tta_model' in refused(score, no_tta, 'any.pth', '--tta')
    assert '--show-dir' in refused(score, no_tta, 'any.pth', '--show-dir', 'x')
    assert '.pkl' in refused(score, no_tta, 'any.pth', '--out', 'x.json')
    assert 'auto_scale_lr.base_batch_size' in refused(train, no_tta, '--auto-scale-lr')


@pytest.mark.skipif(launching.has_accelerator(), reason='needs a machine without an accelerator')
def test_accelerator_flags_without_one(detection):
    assert '--amp: mixed precision needs a GPU' in refused(train, detection, '--amp')
    assert '--launcher slurm needs GPUs' in refused(train, detection, '--launcher', 'slurm')
    assert 'dist_train.sh' in refused(train, detection, '--launcher', 'pytorch')


def test_backbone_arguments(detection):
    pytest.importorskip('backbones')
    message = refused(
        train, detection, '--cfg-options', "custom_imports.imports=downstream,backbones",
        'model.backbone._delete_=True', 'model.backbone.type=FocalNet',
        'model.backbone.focal_levels=(3,3)')
    assert 'focal_levels' in message and 'FocalNet.__init__' not in message
