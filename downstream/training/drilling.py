"""Trainings that are killed again and again, compared with one that is left alone."""
import contextlib
import gc
import json
import os
import random
import runpy
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ..errors import UserError
from ..experiments import ROOT
from ..progress import Progress
from ..saving import write_whole
from .resuming import newest_whole
from .stopping import STATUS

LONGEST = 600.  # seconds that a training may say nothing
SIGNALS = signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1


@dataclass
class Drill:
    """A training that is killed at random moments and resumed.

    Args:
        config: the experiment, a few minutes long, with a seed.
        folder: for the two work dirs; what is there already counts.
        kills: how many.
        at_checkpoints: the share of the kills that wait until a checkpoint is being written.
        others: the share of the kills that are other signals than SIGKILL.
        seed: of the moments.
        processes: of the training; signals go to the command that starts them.
        flags: further ones of tools/train.py.
    """
    config: Path
    folder: Path
    kills: int = 10
    at_checkpoints: float = 0.5
    others: float = 0.25
    seed: int = 0
    processes: int = 1
    flags: list[str] = field(default_factory=list)

    def run(self) -> dict:
        """All of it.

        Returns:
            what was counted: kills by signal, those that came in the midst of writing, runs,
            seconds that a process needed to end after a signal, processes left behind; and in
            ``differences`` what differs in the end: nothing, if all is well.

        Raises:
            UserError: a training failed, or ended otherwise than it should.
        """
        draw = random.Random(self.seed)
        straight, drilled = self.folder / 'straight', self.folder / 'drilled'
        begin = time.monotonic()
        self.train(straight)
        length = time.monotonic() - begin
        counts = dict(kills=0, runs=0, in_writing=0, left_behind=0, slowest_end=0.,
                      **{number.name: 0 for number in SIGNALS})
        with Progress(total=self.kills, desc='kills', unit='kills') as line:
            while counts['kills'] < self.kills:
                number = (draw.choice(SIGNALS[1:]) if draw.random() < self.others
                          else signal.SIGKILL)
                writing = draw.random() < self.at_checkpoints
                counts['runs'] += 1
                if not self.kill(drilled, number, draw.uniform(0, 0.8 * length), writing, counts):
                    # It came to its end first: begin anew, so that all kills are of a run.
                    self.keep(drilled)
                    continue
                counts[number.name] += 1
                counts['kills'] += 1
                line.update()
        self.train(drilled)
        counts['runs'] += 1
        ends = [drilled, *sorted(self.folder.glob('drilled-*'))]
        counts['differences'] = [f'{end.name}: {text}' for end in ends
                                 for text in differences(straight, end)]
        (self.folder / 'drill.json').write_text(json.dumps(counts, indent=1) + '\n')
        return counts

    def command(self, work_dir: Path) -> list[str]:
        tools = ROOT / 'tools'
        train = ([str(tools / 'dist_train.sh'), str(self.config), str(self.processes)]
                 if self.processes > 1 else [sys.executable, str(tools / 'train.py'),
                                             str(self.config)])
        return [*train, '--work-dir', str(work_dir), '--resume', *self.flags]

    def start(self, work_dir: Path) -> subprocess.Popen:
        work_dir.mkdir(parents=True, exist_ok=True)
        with open(work_dir / 'output.txt', 'a') as log:
            return subprocess.Popen(self.command(work_dir), stdout=log, stderr=subprocess.STDOUT,
                                    start_new_session=True)

    def train(self, work_dir: Path):
        if status := self.start(work_dir).wait():
            raise UserError(f'{work_dir}: the training ended with status {status}; see output.txt '
                            'there')

    def kill(self, work_dir: Path, number, delay: float, writing: bool, counts: dict) -> bool:
        """Let a training run for a while and end it; whether it was still there."""
        process = self.start(work_dir)
        if not wait(process, delay, (lambda: being_written(work_dir)) if writing else None):
            if process.wait():
                raise UserError(f'{work_dir}: a training failed by itself; see output.txt there')
            return False
        counts['in_writing'] += being_written(work_dir)
        workers = descendants(process.pid)
        process.send_signal(number)
        begin = time.monotonic()
        status = process.wait(LONGEST)
        counts['slowest_end'] = max(counts['slowest_end'], time.monotonic() - begin)
        # A signal before the training begins, and one after it, may be Python's to handle.
        allowed = {-number, STATUS.get(number), 0 if number in STATUS else -number}
        if status not in allowed:
            raise UserError(f'{work_dir}: after {number.name} the training ended with status '
                            f'{status}; see output.txt there')
        time.sleep(2)
        left = alive(workers)
        counts['left_behind'] += len(left)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        return True

    def keep(self, work_dir: Path):
        done = sum(1 for _ in self.folder.glob('drilled-*'))
        work_dir.rename(self.folder / f'drilled-{done + 1}')


def wait(process, delay: float, until=None) -> bool:
    """Wait, and then until something is the case; whether the process is still there."""
    end = time.monotonic() + delay
    while time.monotonic() < end:
        if process.poll() is not None:
            return False
        time.sleep(0.02)
    end = time.monotonic() + LONGEST
    while until and not until():
        if process.poll() is not None or time.monotonic() > end:
            return False
        time.sleep(0.0005)
    return process.poll() is None


def being_written(folder: Path) -> bool:
    return folder.exists() and any(name.endswith('.part') for name in os.listdir(folder))


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and those that they have. (Linux)"""
    found = []
    for task in Path(f'/proc/{pid}/task').glob('*/children'):
        for child in task.read_text().split():
            found += [int(child), *descendants(int(child))]
    return found


def differences(one: Path, other: Path) -> list[str]:
    """What differs in the last checkpoints, and in the scores, of two work dirs; to the last bit.
    """
    first, second = (torch.load(newest_whole(folder)[0], weights_only=True)
                     for folder in (one, other))
    found = [f'{part} differs' for part in different_parts(first, second)]
    if scores(one) != scores(other):
        found.append(f'the scores differ: {scores(one)} and {scores(other)}')
    names = [sorted(path.name for path in folder.glob('*.pth')) for folder in (one, other)]
    if names[0] != names[1]:
        found.append(f'the checkpoints are {names[0]} and {names[1]}')
    return found


def alive(pids) -> list[int]:
    """Those of the processes that are running (not what of them nobody has waited for)."""
    found = []
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0] not in 'ZX':
                found.append(pid)
    return found


def different_parts(one: dict, other: dict) -> list[str]:
    """What of the states of two trainings, as checkpoints hold them, is not the same."""
    def losses(run):
        return run['message_hub']['log_scalars']['train/loss'].data[0].tolist()

    return [*(part for part in ('state_dict', 'ema_state_dict', 'optimizer', 'param_schedulers')
              if not same(one.get(part), other.get(part))),
            *['the loss'] * (losses(one) != losses(other))]


def same(one, other) -> bool:
    if isinstance(one, torch.Tensor):
        return one.equal(other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def scores(folder: Path) -> dict:
    """Of each validation, by its epoch or iteration."""
    found = {}
    for file in sorted(folder.glob('*/vis_data/scalars.json')):
        for text in file.read_text().splitlines():
            try:
                row = json.loads(text)
            except ValueError:  # cut off by a kill
                continue
            if 'loss' not in row:
                found[row['step']] = {key: value for key, value in row.items()
                                      if key not in ('step', 'time', 'data_time')}
    return found


# -- the same process for hours --------------------------------------------------------------------

def soak(config: Path, folder: Path, minutes: float) -> list[dict]:
    """Train and test again and again in this process.

    Args:
        config: a small experiment.
        folder: for the work dir, and for soak.csv with a line for each round.
        minutes: when no further round begins.

    Returns:
        of each round: seconds since the begin, memory in MiB, open files, threads, child processes,
        and files in /dev/shm (Linux).
    """
    folder.mkdir(exist_ok=True)
    work_dir, rows, begin = folder / 'soak', [], time.monotonic()
    with Progress(total=round(minutes), desc='minutes', unit='min') as line:
        while (passed := time.monotonic() - begin) < 60 * minutes:
            line.update(round(passed / 60) - line.n)
            shutil.rmtree(work_dir, ignore_errors=True)
            with open(folder / 'soak.txt', 'w') as log, contextlib.redirect_stdout(log), \
                    contextlib.redirect_stderr(log):
                tool('train.py', str(config), '--work-dir', str(work_dir))
                tool('test.py', str(work_dir / config.name), str(newest_whole(work_dir)[0]),
                     '--work-dir', str(work_dir / 'test'))
            time.sleep(1.01 - time.time() % 1)  # mmengine names runs by the second
            gc.collect()
            rows.append(dict(seconds=time.monotonic() - begin, **held()))
            write_whole(folder / 'soak.csv', '\n'.join(
                [','.join(rows[0]), *(','.join(f'{value:g}' for value in row.values())
                                      for row in rows)]) + '\n')
    return rows


def tool(name: str, *args: str):
    """Run a command of tools/ in this process."""
    before = sys.argv
    sys.argv = [name, *args]
    try:
        runpy.run_path(str(ROOT / 'tools' / name), run_name='__main__')
    finally:
        sys.argv = before


def held() -> dict[str, float]:
    """What this process holds of the machine."""
    status = dict(line.split(':', 1) for line in Path('/proc/self/status').read_text().splitlines())
    return dict(memory=int(status['VmRSS'].split()[0]) / 1024,
                files=len(os.listdir('/proc/self/fd')), threads=int(status['Threads']),
                children=len(descendants(os.getpid())), shared=len(os.listdir('/dev/shm')))
