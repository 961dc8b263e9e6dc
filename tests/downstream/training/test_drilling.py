"""A drill sees what differs, and what is left behind. (tools/drill.py is the drill itself.)"""
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch
from mmengine.logging import HistoryBuffer

from downstream.errors import UserError
from downstream.training import drilling
from downstream.training.drilling import Drill, being_written, descendants, differences, held, wait

ENDLESS = [sys.executable, '-c', 'import time; time.sleep(60)']


@pytest.fixture
def run(tmp_path):
    """A work dir, as far as a drill looks at it."""
    folder = tmp_path / 'one'
    logs = folder / '20260101_000000' / 'vis_data'
    logs.mkdir(parents=True)
    loss = HistoryBuffer()
    loss.update(0.5)
    torch.save(dict(
        meta=dict(iter=1), state_dict=dict(w=torch.ones(3)), message_hub=dict(
            log_scalars={'train/loss': loss}),
        optimizer=dict(state={0: dict(exp_avg=torch.ones(3))}, param_groups=[dict(lr=0.1)]),
        param_schedulers=[dict(last_step=1)]), folder / 'epoch_1.pth')
    rows = dict(loss=0.5, step=1), dict(mIoU=0.25, step=1, time=3.)
    (logs / 'scalars.json').write_text(''.join(f'{json.dumps(row)}\n' for row in rows))
    return folder


def change(folder, **parts):
    path = folder / 'epoch_1.pth'
    torch.save({**torch.load(path), **parts}, path)


@pytest.mark.parametrize('harm, found', [
    (lambda it: None, []),
    (lambda it: change(it, state_dict=dict(w=torch.tensor([1., 1., 1 + 2**-23]))),
     ['state_dict differs']),
    (lambda it: change(it, param_schedulers=[dict(last_step=2)]), ['param_schedulers differs']),
    (lambda it: change(it, optimizer=dict(state={}, param_groups=[])), ['optimizer differs']),
    (lambda it: shutil.rmtree(it / '20260101_000000'), ['the scores differ: ']),
    (lambda it: (it / 'interrupted.pth').write_bytes(b''), ['the checkpoints are ']),
], ids=['nothing', 'a bit', 'schedule', 'optimizer', 'scores', 'files'])
def test_differences(run, tmp_path, harm, found):
    other = tmp_path / 'other'
    shutil.copytree(run, other)
    with (other / '20260101_000000' / 'vis_data' / 'scalars.json').open('a') as log:
        log.write('{"cut o')
    harm(other)
    said = differences(run, other)
    assert len(said) == len(found) and all(map(str.startswith, said, found))


def test_what_a_process_leaves_behind(tmp_path, monkeypatch):
    """A child that outlives it is counted, and ended; a signal that it withstands is an error."""
    code = f'import subprocess, time; subprocess.Popen({ENDLESS!r}); time.sleep(60)'
    drill = Drill(tmp_path / 'x.py', tmp_path)
    monkeypatch.setattr(Drill, 'command', lambda *_: [sys.executable, '-c', code])
    counts = dict(in_writing=0, left_behind=0, slowest_end=0.)
    assert drill.kill(tmp_path / 'run', signal.SIGKILL, 1., False, counts)
    assert counts['left_behind'] == 1 and counts['slowest_end'] < 30
    monkeypatch.setattr(Drill, 'command', lambda *_: [
        sys.executable, '-c', 'import signal, sys, time; signal.signal(signal.SIGTERM, '
                              'lambda *_: sys.exit(3)); time.sleep(60)'])
    with pytest.raises(UserError, match='after SIGTERM the training ended with status 3'):
        drill.kill(tmp_path / 'run', signal.SIGTERM, 1., False, counts)
    monkeypatch.setattr(Drill, 'command', lambda *_: [sys.executable, '-c', 'raise SystemExit(1)'])
    with pytest.raises(UserError, match='a training failed by itself'):
        drill.kill(tmp_path / 'run', signal.SIGTERM, 30., False, counts)
    with pytest.raises(UserError, match='the training ended with status 1'):
        drill.train(tmp_path / 'run')


def test_the_moment_of_writing(tmp_path):
    assert not being_written(tmp_path / 'none') and not being_written(tmp_path)
    (tmp_path / '.epoch_1.pth.4711.part').write_bytes(b'')
    assert being_written(tmp_path)
    with subprocess.Popen(ENDLESS) as process:
        seen = []
        assert wait(process, 0., lambda: len(seen) > 3 or seen.append(1))
        assert process.pid in descendants(os.getpid())
        process.kill()
        process.wait()
        assert not wait(process, 0.1)


def test_a_soak_writes_down_what_is_held(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(drilling, 'tool', lambda name, *_: calls.append(name))
    monkeypatch.setattr(drilling, 'newest_whole', lambda _: ('epoch_1.pth', []))
    begin = time.monotonic()
    rows = drilling.soak(SimpleNamespace(name='x.py'), tmp_path, 0.03)
    assert calls == ['train.py', 'test.py'] * len(rows) and time.monotonic() - begin < 30
    lines = (tmp_path / 'soak.csv').read_text().splitlines()
    assert lines[0] == 'seconds,memory,files,threads,children,shared' and len(lines) > 1
    assert held()['memory'] > 50 and held()['files'] >= 3
