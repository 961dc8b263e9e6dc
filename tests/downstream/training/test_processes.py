"""What several processes do once: the others have its result, and none is left waiting."""
import ast
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import alive, gone
from mmengine.config import Config

from downstream.training import processes

# A process of a run, without the imports that take long. It appends what it does to a file.
PROCESS = '''
import importlib.util, os, sys
spec = importlib.util.spec_from_file_location('processes', sys.argv[1])
processes = importlib.util.module_from_spec(spec)
spec.loader.exec_module(processes)
from mmengine.config import Config
cfg = Config(dict(launcher='pytorch', model=dict(classes=1)))

def work():
    with open('done', 'a') as file:
        file.write(os.environ['RANK'])
    if sys.argv[2] == 'mistake':
        sys.exit('error: a mistake in the data')
    if sys.argv[2] == 'killed':
        os._exit(9)
    cfg.model.classes = 7
    cfg.new = dict(a=[1, 2])
    return ['a note']

notes = processes.first_does(cfg, work)
import torch
torch.distributed.init_process_group('gloo')  # over the same port
total = torch.tensor(cfg.model.classes)
torch.distributed.all_reduce(total)
print(notes, cfg.new.a, int(total), flush=True)
torch.distributed.destroy_process_group()
'''


# A process with two workers that take an hour for the second batch, as a main process has them:
# with handlers of its own, and threads that have ended since.
LOADER = '''
import importlib.util, os, signal, sys, threading, time
spec = importlib.util.spec_from_file_location('processes', sys.argv[1])
processes = importlib.util.module_from_spec(spec)
spec.loader.exec_module(processes)
from torch.utils.data import DataLoader

class Data:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        slow.is_set() and time.sleep(3600)
        return [os.getpid(), *(int(signal.getsignal(number)) for number in (
            signal.SIGUSR1, signal.SIGINT))]

for number in signal.SIGTERM, signal.SIGINT, signal.SIGUSR1:
    signal.signal(number, lambda *_: None)
processes.guard_forks()
import torch.multiprocessing
slow = torch.multiprocessing.Event()
loader = DataLoader(Data(), 1, num_workers=2, persistent_workers=True, collate_fn=list)
first = list(loader)
thread = threading.Thread(target=list, args=[loader])
thread.start()
thread.join()
again = list(loader)
slow.set()
batches = iter(loader)
print([batch[0] for batch in first], [batch[0] for batch in again], sep='|', flush=True)
time.sleep(3600)
'''


def test_workers_end_with_their_process(tmp_path):
    """With SIGKILL, in the midst of a sample; until then they live through all epochs."""
    (tmp_path / 'loader.py').write_text(LOADER)
    parent = subprocess.Popen([sys.executable, '-W', 'ignore', 'loader.py', processes.__file__],
                              cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:
        first, again = map(ast.literal_eval, parent.stdout.readline().split('|'))
        workers = sorted({pid for pid, *_ in first})
        assert len(workers) == 2 and sorted({pid for pid, *_ in again}) == workers
        handlers = {tuple(found) for _, *found in first}
        assert handlers == {(int(signal.SIG_DFL), int(signal.SIG_IGN))}
        assert alive(workers) == workers
    finally:
        parent.kill()
        parent.wait()
    assert gone(workers, 2)


def run(how, tmp_path, machines=1, each=3):
    """Start processes as torchrun does on some machines; (status, stdout, stderr) of each."""
    (tmp_path / 'process.py').write_text(PROCESS)
    with socket.socket() as free:
        free.bind(('', 0))
        port = free.getsockname()[1]
    env = {**os.environ, 'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': str(port),
           'WORLD_SIZE': str(machines * each), 'LOCAL_WORLD_SIZE': str(each),
           'OMP_NUM_THREADS': '1'}
    started = [subprocess.Popen(
        [sys.executable, '-W', 'ignore', 'process.py', processes.__file__, how], cwd=tmp_path,
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={
            **env, 'RANK': str(rank), 'LOCAL_RANK': str(rank % each),
            'GROUP_RANK': str(rank // each)})
        for rank in range(machines * each)]
    try:
        said = [process.communicate(timeout=120) for process in started]
    finally:
        for process in started:
            process.kill()
    return [(process.returncode, *texts) for process, texts in zip(started, said, strict=True)]


def test_once_on_each_machine(tmp_path):
    ended = run('well', tmp_path, machines=2, each=2)
    assert [status for status, *_ in ended] == [0] * 4, ended
    assert {out for _, out, _ in ended} == {"['a note'] [1, 2] 28\n"}
    assert sorted((tmp_path / 'done').read_text()) == ['0', '2']


def test_a_mistake_ends_all_with_one_message(tmp_path):
    begin = time.monotonic()
    ended = run('mistake', tmp_path)
    assert [status for status, *_ in ended] == [1, 1, 1]
    assert [err for *_, err in ended] == ['error: a mistake in the data\n', '', '']
    assert (tmp_path / 'done').read_text() == '0' and time.monotonic() - begin < 100


def test_none_waits_for_a_process_that_is_gone(tmp_path):
    ended = run('killed', tmp_path)
    assert [status for status, *_ in ended] == [9, 1, 1]
    assert not any('Traceback' in err for *_, err in ended)


@pytest.mark.parametrize(('launcher', 'count'), [('none', '8'), ('pytorch', '1'), ('slurm', '8')])
def test_alone(launcher, count, monkeypatch):
    """In one process, and where nobody says over which port processes talk."""
    monkeypatch.setenv('LOCAL_WORLD_SIZE', count)
    monkeypatch.setenv('LOCAL_RANK', '1')
    monkeypatch.setattr(processes, 'store', lambda: pytest.fail('there is none'))
    assert processes.first_does(Config(dict(launcher=launcher)), lambda: ['done']) == ['done']
    assert Path(processes.__file__).is_file()
