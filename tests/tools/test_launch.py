"""The launcher: signals, statuses and words of its processes, and that none is left."""
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import alive, command, gone

from downstream.training import waiting

ROOT = Path(__file__).resolve().parents[2]

# A process of a run, in Python alone. It says when it is there, and behaves as its rank is told.
PROCESS = '''
import faulthandler, os, signal, sys, time
rank = int(os.environ['RANK'])
behaviour = sys.argv[1:][rank]
stop = []
for number in signal.SIGTERM, signal.SIGINT, signal.SIGUSR1:
    signal.signal(number, lambda number, frame: stop.append(number))
faulthandler.register(signal.SIGUSR2, all_threads=False, chain=False)
with open(f'rank{rank}', 'w') as file:
    print(os.getpid(), *(os.environ[name] for name in (
        'RANK', 'LOCAL_RANK', 'GROUP_RANK', 'WORLD_SIZE', 'LOCAL_WORLD_SIZE', 'MASTER_ADDR')),
        file=file, flush=True)

def hangs_here():
    while behaviour == 'hangs' or not stop:
        time.sleep(0.02)

if behaviour.isdigit():
    time.sleep(0.2)
    sys.exit(int(behaviour))
if behaviour == 'killed':
    os.kill(os.getpid(), signal.SIGKILL)
hangs_here()
if behaviour == 'saves':
    time.sleep(1)
open(f'stopped{rank}', 'w').write(str(stop[0]))
sys.exit(75)
'''
START = 'import sys, launch; launch.GRACE = 0.3; launch.main(sys.argv[1:])'


@pytest.fixture
def start(tmp_path):
    started = []

    def start(*behaviours, **settings):
        """The launcher, when all of its processes are there; and their ids."""
        (tmp_path / 'process.py').write_text(PROCESS)
        process = subprocess.Popen(
            [sys.executable, '-c', START, str(len(behaviours)), 'process.py', *behaviours],
            cwd=tmp_path, stderr=subprocess.PIPE, text=True,
            env={**os.environ, 'PYTHONPATH': str(ROOT / 'tools'), **settings})
        started.append(process)
        paths = [tmp_path / f'rank{rank}' for rank in range(len(behaviours))]
        end = time.monotonic() + 30
        while not all(path.is_file() and path.read_text().endswith('\n') for path in paths):
            assert time.monotonic() < end
            time.sleep(0.02)
        return process, [int(path.read_text().split()[0]) for path in paths]

    yield start
    for process in started:
        process.kill()


@pytest.mark.parametrize(('sent', 'arrives'), [
    (signal.SIGTERM, signal.SIGTERM), (signal.SIGUSR1, signal.SIGTERM),
    (signal.SIGINT, signal.SIGINT)])
def test_signals_reach_the_processes(start, tmp_path, sent, arrives):
    """Each once. The one that saves has the time, though the other has ended."""
    launcher, pids = start('stops', 'saves')
    launcher.send_signal(sent)
    _, said = launcher.communicate(timeout=30)
    assert launcher.returncode == 75 and said == ''
    assert [(tmp_path / f'stopped{rank}').read_text() for rank in (0, 1)] == [str(int(arrives))] * 2
    assert not alive(pids)


def test_the_third_signal_ends_what_does_not_listen(start):
    launcher, pids = start('hangs', 'hangs')
    for _ in range(3):
        launcher.send_signal(signal.SIGTERM)
        time.sleep(0.2)
    _, said = launcher.communicate(timeout=30)
    assert launcher.returncode == 137 and said == '' and gone(pids, 2)


def test_none_outlives_the_launcher(start):
    launcher, pids = start('hangs', 'hangs')
    assert alive(pids) == pids
    launcher.kill()
    launcher.wait()
    assert gone(pids, 2)


@pytest.mark.parametrize(('behaviours', 'status', 'says'), [
    (('0', '0'), 0, ''),
    (('hangs', '3'), 3, ''),  # it has said why
    (('76', 'killed'), 1, 'rank 1 .* was ended by SIGKILL: .*memory'),
    (('0', '76'), 1, 'another machine'),
    (('75', '76'), 75, ''),
])
def test_statuses(start, behaviours, status, says):
    launcher, pids = start(*behaviours)
    _, said = launcher.communicate(timeout=30)
    assert launcher.returncode == status and gone(pids, 2)
    assert (re.search(says, said) if says else said == ''), said
    assert said.count('error: ') == bool(says)


def test_one_that_hangs_says_where(start):
    launcher, pids = start('77', 'hangs')
    _, said = launcher.communicate(timeout=30)
    assert launcher.returncode == 1 and gone(pids, 2)
    assert f'The process of rank 1 ({pids[1]}) did not come' in said and 'in hangs_here' in said


MISTAKE = '''
import importlib.util, os, sys, time
spec = importlib.util.spec_from_file_location('errors', sys.argv[1])
errors = importlib.util.module_from_spec(spec)
spec.loader.exec_module(errors)

@errors.one_message('')
def main():
    if sys.argv[2] == 'one' and os.environ['RANK'] == '0':
        time.sleep(0.3)
        sys.exit(76)  # of its own accord, as it has lost the other
    raise ValueError('broken') if sys.argv[2] == 'bug' else errors.UserError('a mistake')

main()
'''


@pytest.mark.parametrize('who', ['one', 'both', 'bug'])
def test_what_is_wrong_is_said_once(tmp_path, who):
    (tmp_path / 'mistake.py').write_text(MISTAKE)
    done = subprocess.run([sys.executable, ROOT / 'tools' / 'launch.py', '2', 'mistake.py',
                           ROOT / 'downstream' / 'errors.py', who],
                          cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    if who == 'bug':
        assert done.stderr.count('Traceback') == 1 == done.stderr.count('ValueError: broken')
    else:
        assert done.stderr == 'error: a mistake\n'


def test_several_machines(monkeypatch, tmp_path):
    """Ranks go on from one machine to the next; the address is the first one's."""
    for name, value in dict(NNODES='2', NODE_RANK='1', MASTER_ADDR='10.0.0.1',
                            PORT='1234').items():
        monkeypatch.setenv(name, value)
    names = 'RANK', 'LOCAL_RANK', 'GROUP_RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT'
    show = (f'import os; print(*(os.environ[name] for name in {names}), '
            'file=open("said" + os.environ["RANK"], "w"))')
    monkeypatch.chdir(tmp_path)
    for process in command('launch').start(2, [sys.executable, '-c', show], 'said'):
        assert process.wait(30) == 0
    assert Path('said2').read_text() == '2 0 1 4 10.0.0.1 1234\n'
    assert Path('said3').read_text() == '3 1 1 4 10.0.0.1 1234\n'


def test_statuses_are_those_of_the_processes():
    launch = command('launch')
    assert (launch.LOST, launch.LATE) == (waiting.LOST, waiting.LATE)
