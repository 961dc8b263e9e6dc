"""One training a work dir."""
import os
import subprocess
import sys
from pathlib import Path

from commands import command, refused

from downstream.training.locking import holding

HOLD = '''
import fcntl, os, sys
file = open('run/.lock', 'a+')
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print('held', os.getpid(), file=file, flush=True)
print('held', flush=True)
sys.stdin.read()
'''


def test_a_second_training(segmentation, elsewhere, monkeypatch):
    train = command('train').main
    Path('run').mkdir()
    with subprocess.Popen([sys.executable, '-c', HOLD], text=True, stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == 'held\n'
        message = refused(train, segmentation, '--work-dir', 'run')
        assert f'run is the work dir of a training that runs (held {other.pid})' in message
        assert os.listdir('run') == ['.lock']
        monkeypatch.setenv('RANK', '1')
        with holding('run'):  # another process of the same training
            pass
        monkeypatch.delenv('RANK')
        other.kill()  # which leaves the file
    with holding('run'):
        assert f'process {os.getpid()} on ' in Path('run/.lock').read_text()


def test_children_do_not_hold_it(elsewhere):
    """A data loader's worker that outlives its training for a moment."""
    Path('run').mkdir()
    read, write = os.pipe()
    with holding('run'):
        child = os.fork()
        if not child:
            os.close(write)
            os.read(read, 1)
            os._exit(0)
    done = subprocess.run([sys.executable, '-c', HOLD], text=True, input='',
                          capture_output=True)
    os.close(write)
    os.waitpid(child, 0)
    assert done.stdout == 'held\n'
