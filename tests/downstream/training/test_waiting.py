"""Processes that wait for each other: how long, what they say, and what each image counts."""
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from mmengine.config import Config

from downstream.errors import UserError
from downstream.training import waiting

ROOT = Path(__file__).resolve().parents[3]

# A process of a run, without mmdet and mmseg: they take long to load.
PROCESS = '''
import os, sys, time, types
for name in 'downstream', 'downstream.training':
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [os.path.join(sys.argv[1], *name.split('.'))]
import torch.distributed as dist
from mmengine.config import Config
from mmengine.dataset import DefaultSampler
from mmengine.evaluator import BaseMetric
from downstream.errors import one_message
from downstream.training.launching import fit_launcher, orderly_exit


class Slow(BaseMetric):
    default_prefix = 'slow'

    def process(self, batch, samples):
        self.results.extend(samples)

    def compute_metrics(self, results):
        time.sleep(float(sys.argv[2]))
        return dict(images=results)


@one_message('')
@orderly_exit()
def main():
    cfg = Config(dict(launcher='pytorch', model=dict(),
                      env_cfg=dict(dist_cfg=dict(timeout=float(sys.argv[3])))))
    fit_launcher(cfg)
    metric, rank = Slow(), dist.get_rank()
    for size in 3, 1:
        metric.process(None, list(DefaultSampler(range(size), shuffle=False)))
        images = metric.evaluate(size)['slow/images']
        rank or print(images, flush=True)
    hangs(rank)


def hangs(rank):
    if rank == 1:
        time.sleep(3600)
    dist.barrier()


main()
'''
START = 'import sys, launch; launch.GRACE = 1; launch.main(sys.argv[1:])'


def run(tmp_path, count, *args):
    (tmp_path / 'process.py').write_text(PROCESS)
    return subprocess.run(
        [sys.executable, '-c', START, str(count), 'process.py', str(ROOT), *map(str, args)],
        cwd=tmp_path, text=True, capture_output=True, timeout=200,
        env={**os.environ, 'PYTHONPATH': str(ROOT / 'tools'), 'PYTHONWARNINGS': 'ignore'})


def test_one_that_hangs_is_named(tmp_path):
    """After the limit, and scores may take longer. No image counts twice, of one alone neither."""
    done = run(tmp_path, 2, 1.5, 1)
    assert done.stdout == '[0, 1, 2]\n[0]\n', done.stderr
    assert done.returncode == 1 and done.stderr.count('error: ') == 1
    assert re.search(r'error: the process of rank 0 waited 1 s for the others in hangs '
                     r'\(process.py, line \d+\)', done.stderr), done.stderr
    assert re.search(r'process of rank 1 \(\d+\) did not come. Where it is:\nStack.*\n'
                     r'  File .*process.py", line \d+ in hangs', done.stderr), done.stderr
    assert 'Traceback' not in done.stderr


def test_timeout_of_a_config():
    cfg = Config(dict(model=dict()))
    assert waiting.set_timeout(cfg).total_seconds() == 600 == cfg.env_cfg.dist_cfg.timeout
    cfg = Config(dict(env_cfg=dict(dist_cfg=dict(backend='gloo', timeout=7))))
    assert waiting.set_timeout(cfg).total_seconds() == 7
    for wrong in '7', 0, True, None:
        cfg.env_cfg.dist_cfg.timeout = wrong
        with pytest.raises(UserError, match='number of seconds'):
            waiting.set_timeout(cfg)


def test_words_of_those_that_lose_others(monkeypatch, capsys):
    """Only where no launcher says it; and other errors are not about others."""
    monkeypatch.delenv('DOWNSTREAM_SAID', raising=False)
    lost = RuntimeError('[/pytorch/third_party/gloo/gloo/pair.cc:553] Connection closed by peer')
    for error, status in ((lost, 76), (ValueError('timed out'), None)):
        try:
            raise error
        except Exception as raised:
            ends = waiting.about_others(raised)
        assert (ends and ends.code) == status
    said = capsys.readouterr().err
    assert re.fullmatch(r'error: the process of rank 0 lost the others .*\n', said)
    monkeypatch.setenv('MASTER_PORT', '29500')
    with pytest.raises(UserError, match='port 29500 is taken'):
        waiting.about_others(RuntimeError('The server socket has failed to listen: EADDRINUSE'))
