"""What a person sees first is about their run: the libraries' remarks about themselves are hidden.
"""
import logging
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import mmengine.logging
import pytest

from downstream import quiet

ROOT = Path(__file__).resolve().parents[2]
# What tools/train.py itself warns of here, and nothing else.
OURS = {'The backbone starts from random weights', 'No accelerator here: training in float32'}


def run(*command):
    return subprocess.run([sys.executable, *map(str, command)], cwd=ROOT, capture_output=True,
                          text=True, env={**os.environ, 'CUDA_VISIBLE_DEVICES': '',
                                          'OMP_NUM_THREADS': '1', 'PYTHONWARNINGS': ''})


@pytest.mark.parametrize('task, option', [
    ('detection', 'train_dataloader.num_workers=1'),
    # (of two classes without this, mmseg advises to predict one: that is a person's decision)
    ('segmentation', 'model.decode_head.out_channels=2')])
def test_a_training(task, option, request, tmp_path):
    """Train, in a process of its own and with a loader's worker, and validate."""
    config = request.getfixturevalue(task)
    done = run(ROOT / 'tools' / 'train.py', config, '--work-dir', tmp_path / 'run',
               '--cfg-options', option, 'val_dataloader.num_workers=1')
    assert done.returncode == 0 and done.stderr == ''
    assert 'Saving checkpoint' in done.stdout and 'OneDL' not in done.stdout
    log, = (tmp_path / 'run').glob('*/*.log')
    for told in 'Config:', 'System environment:', 'Hooks will be executed':
        assert told in log.read_text() and told not in done.stdout
    first = done.stdout.splitlines()[0]
    assert re.search(r' - mmengine - INFO - .*_ROOT', first), first
    warned = re.findall(r'mmengine - (?:WARNING|ERROR) - (.*)', done.stdout)
    assert len(warned) == len(OURS) and all(line.startswith(tuple(OURS)) for line in warned)


@pytest.mark.parametrize('name', ['test', 'demo', 'make_demo_data'])
def test_help(name):
    done = run(ROOT / 'tools' / f'{name}.py', '--help')
    assert done.returncode == 0 and done.stdout.startswith('usage: ') and done.stderr == ''


def warned(message, module):
    """Whether a warning gets through the filters that importing the project set."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.resetwarnings()
        for known in quiet.WARNINGS:
            quiet.ignore(known)
        warnings.warn_explicit(message, UserWarning, 'file.py', 1, module)
    return [str(warning.message) for warning in seen] == [message]


def test_hides_nothing_else(capsys):
    mine = 'Default ``avg_non_ignore`` is False, if you would like to'
    assert not warned(mine, 'mmseg.models.losses.cross_entropy_loss')
    assert warned(mine, 'a_persons.own.module') and warned(mine, '__main__')
    assert warned('the loss is NaN', 'mmseg.models.losses.cross_entropy_loss')

    def kept(text):
        return quiet.keep(logging.LogRecord('mmengine', logging.WARNING, '', 1, text, (), None))

    assert not kept('The prefix is not set in metric class IoUMetric.')
    assert kept('unexpected key in source state_dict: prefix') and kept(ValueError('text'))

    mmengine.logging.print_log('Could not import OneDL. Skipping OneDL datasets.',
                               level=logging.DEBUG)
    mmengine.logging.print_log('Could not import mine', level=logging.DEBUG)
    assert capsys.readouterr().out == 'Could not import mine\n'
