"""tools/train.py and tools/test.py from training to test-time augmentation, and the launcher."""
import os
import pickle
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from commands import command, two_processes
from mmengine.config import Config

from downstream.errors import UserError
from downstream.training import flags

ROOT = Path(__file__).resolve().parents[2]


tools = {name: command(name) for name in ('train', 'test')}
train, score = tools['train'].main, tools['test'].main


@pytest.fixture(autouse=True)
def a_name_of_its_own(elsewhere):
    new_second()


def log_of(work_dir):
    return '\n'.join(path.read_text() for path in sorted(Path(work_dir).glob('*/*.log')))


def new_second():
    """mmengine names runs by the second and shares one logger among those of a name."""
    time.sleep(1.01 - time.time() % 1)


def test_amp_flag(monkeypatch, tmp_path):
    """What is float32 in its recipe trains in mixed precision when asked, where there is a GPU."""
    monkeypatch.setattr(flags, 'has_accelerator', lambda: True)

    def wrapper(**changes):
        cfg = Config.fromfile(ROOT / 'configs' / 'upernet_focalnet_t_160k.py')
        cfg.work_dir = str(tmp_path)
        cfg.optim_wrapper.update(changes)
        args = tools['train'].parse_args(['config.py', '--amp'])
        assert flags.apply_flags(cfg, args) == []
        return cfg.optim_wrapper

    assert (wrapper().type, wrapper().loss_scale) == ('AmpOptimWrapper', 'dynamic')
    assert wrapper(type='AmpOptimWrapper', loss_scale=512.).loss_scale == 512.
    with pytest.raises(UserError, match='--amp: .* the config has OptimWrapperDict'):
        wrapper(type='OptimWrapperDict')


@pytest.mark.parametrize('task', ['detection', 'segmentation'])
def test_train_resume_score(task, request, tmp_path):
    config = request.getfixturevalue(task)
    work_dir = tmp_path / 'work_dirs' / config.stem
    train([str(config), '--resume', '--auto-scale-lr'])
    log = log_of(work_dir)
    assert 'no checkpoint in' in log and 'starts from scratch' in log
    assert 'float32 instead of mixed precision' in log
    dumped = Config.fromfile(work_dir / config.name)
    assert dumped.optim_wrapper.type == 'OptimWrapper'
    assert 'loss_scale' not in dumped.optim_wrapper and dumped.optim_wrapper.clip_grad.max_norm == 1
    state = torch.load(work_dir / 'iter_2.pth', weights_only=False)
    assert state['optimizer']['param_groups'][0]['initial_lr'] == pytest.approx(1e-3 * 2 / 16)

    new_second()
    train([str(config), '--resume', '--auto-scale-lr', '--allow-changes',
           '--cfg-options', 'train_cfg.max_iters=4'])
    assert 'resumed epoch: 0, iter: 2' in log_of(work_dir)
    assert (work_dir / 'iter_4.pth').is_file()

    new_second()
    score([str(config), str(work_dir / 'iter_4.pth'), '--work-dir', 'scores', '--out', 'out.pkl',
           '--show-dir', 'pictures'])
    results = pickle.loads(Path('out.pkl').read_bytes())
    assert len(results) == 2
    assert len(list(Path('pictures').rglob('*.[jp][pn]g'))) == 2
    assert ('bbox_mAP' if task == 'detection' else 'mIoU') in log_of('scores')
    if task == 'segmentation':
        assert 'seg_logits' not in results[0]

    new_second()
    score([str(config), str(work_dir / 'iter_4.pth'), '--work-dir', 'tta', '--tta'])
    assert ('bbox_mAP' if task == 'detection' else 'mIoU') in log_of('tta')


def test_resume_from_a_file(segmentation):
    """And what the log says about weights before."""
    no_validation = ['val_dataloader=None', 'val_evaluator=None', 'val_cfg=None']
    train([str(segmentation), '--work-dir', 'first', '--cfg-options', *no_validation])
    log = log_of('first')
    assert 'starts from random weights' in log
    assert '--weights auto, or --weights NAME_OR_FILE' in log

    new_second()
    train([str(segmentation), '--resume', 'first/iter_2.pth', '--work-dir', 'second',
           '--allow-changes', '--cfg-options', 'train_cfg.max_iters=3', *no_validation])
    log = log_of('second')
    assert 'resumed epoch: 0, iter: 2' in log and 'random weights' not in log


def test_two_processes_without_gpu(segmentation, ade):
    """The wrapper trains with gloo: what one process learns, both have. One prepares the data."""
    Path('own.yaml').write_text(
        f'root: {ade}\ntrain: {{images: images/train, labels: labels/train}}\n'
        'val: {images: images/val, labels: labels/val}\nclasses: {1: wall, 2: building}\n')
    two_processes(segmentation, '--work-dir', 'two', '--data', 'own.yaml')
    assert Path('two/iter_2.pth').is_file()
    log = log_of('two')
    assert log.count('own.yaml: segmentation') == 1
    assert 'processes talk through gloo' in log and 'Distributed training: True' in log
    assert 'mIoU' in log


def test_wrappers_pass_everything_on(tmp_path, monkeypatch):
    """The shell scripts' calling conventions, with programs that print their arguments."""
    (tmp_path / 'srun').write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / 'srun').chmod(0o755)
    env = {**os.environ, 'PATH': f'{tmp_path}:{os.environ["PATH"]}', 'PYTHON': '/bin/echo'}

    def run(script, *args, **settings):
        return subprocess.run([ROOT / 'tools' / script, *args], env={**env, **settings},
                              capture_output=True, text=True, check=True).stdout

    said = run('dist_test.sh', 'c.py', 'w.pth', '4', '--tta')
    assert re.search(r'launch.py 4 \S*/test.py c.py w.pth --launcher pytorch --tta$', said)
    said = run('dist_train.sh', 'c.py', '4', '--amp')
    assert re.search(r'launch.py 4 \S*/train.py c.py --launcher pytorch --amp$', said)
    said = run('slurm_train.sh', 'part', 'job', 'c.py', 'dir', '--amp', GPUS='16',
               SRUN_ARGS='--time=1 --mem=2')
    assert '-p part --job-name=job --gres=gpu:8 --ntasks=16' in said
    assert '--time=1 --mem=2' in said
    assert 'train.py c.py --launcher slurm --work-dir dir --amp' in said
    said = run('slurm_train.sh', 'part', 'job', 'c.py', '--amp')
    assert 'train.py c.py --launcher slurm --amp' in said
    said = run('slurm_test.sh', 'part', 'job', 'c.py', 'w.pth', '--tta', GPUS='2')
    assert '--gres=gpu:2' in said and 'test.py c.py w.pth --launcher slurm --tta' in said


def test_a_script_alone(tmp_path):
    """As a person starts it: one line, no traceback, status 1, from any directory."""
    done = subprocess.run([sys.executable, ROOT / 'tools' / 'train.py', 'nothing.py'],
                          capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith('error: there is no config file nothing.py')
    assert 'Traceback' not in done.stderr


def test_data_of_ones_own(detection, segmentation, coco, ade, tmp_path, monkeypatch):
    """--data, another length, from another model's checkpoint; the resolved config works alone."""
    monkeypatch.delenv('COCO_ROOT')
    monkeypatch.delenv('ADE20K_ROOT')
    train([str(detection), '--data', str(coco), '--iters', '1', '--batch', '1'])
    work_dir = tmp_path / 'work_dirs' / detection.stem
    assert "detection, COCO's layout" in log_of(work_dir)
    assert Config.fromfile(work_dir / detection.name).train_cfg.max_iters == 1
    monkeypatch.chdir('/')
    new_second()
    score([str(work_dir / detection.name), str(work_dir / 'iter_1.pth'), '--work-dir',
           str(tmp_path / 'alone')])
    assert 'coco/bbox_mAP' in log_of(tmp_path / 'alone')

    monkeypatch.chdir(tmp_path)
    new_second()
    (tmp_path / 'more.yaml').write_text(
        f'root: {ade}\ntrain: {{images: images/train, labels: labels/train}}\n'
        'classes: {1: building, 2: wall, 3: sky}\n')
    train([str(segmentation), '--data', 'more.yaml', '--val-split', '0.4', '--iters', '1'])
    log = log_of(tmp_path / 'work_dirs' / segmentation.stem)
    assert 'sky' in log and 'mIoU' in log

    new_second()  # three classes become two, of which one is known
    (tmp_path / 'two.yaml').write_text(
        f'root: {ade}\ntrain: {{images: images/train, labels: labels/train}}\n'
        'classes: {1: wall, 2: door}\n')
    train([str(segmentation), '--data', 'two.yaml', '--keep-classes', '--work-dir', 'fine',
           '--cfg-options', f'load_from=work_dirs/{segmentation.stem}/iter_1.pth'])
    log = log_of('fine')
    assert 'the 1 that are among the 2 here are kept in decode_head.conv_seg (2)' in log
    assert 'size mismatch' not in log


@pytest.mark.parametrize('flags, message', [
    (['--val-split', '0.1'], '--val-split: splits the images that --data names'),
    (['--val-split', '1.5'], '--val-split 1.5: a share of the training images'),
    (['--keep-classes'], '--keep-classes: of which checkpoint'),
    (['--epochs', '2', '--iters', '2'], 'an experiment counts one of them'),
    (['--epochs', '2'], 'this experiment does not count epochs; use --iters'),
    (['--batch', '0'], '--batch 0: give a number from 1 on'),
    (['--data', 'nowhere'], '--data nowhere: there is no such file or folder'),
])
def test_flags_that_do_not_go(detection, flags, message):
    with pytest.raises(SystemExit, match=message):
        train([str(detection), *flags])
