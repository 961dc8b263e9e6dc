#!/usr/bin/env python3
"""Run the processes of a training or a test on this machine: tools/launch.py COUNT TOOL ARGUMENTS.

For dist_train.sh and dist_test.sh. What torchrun does that is needed here, and what it does not:
signals reach the processes and nothing cuts their saving short (torchrun dies of SIGUSR1, and kills
30 seconds after SIGTERM); the status is theirs (torchrun's is 1); what went wrong is said once;
and however this process ends, they do. It needs nothing but Python.
"""
import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

STOPPED = 75  # a process has saved a checkpoint and stopped, because it was asked to
LOST = 76  # it ended because others were gone (downstream/training/processes.py)
LATE = 77  # it said that it waited too long for others; these are asked where they are
GRACE = 5  # seconds for the others when one has failed: to end what they write, to say why
KILLED_GRACE = 1  # when it was killed: it has said nothing, and nobody else knows why
PR_SET_PDEATHSIG = 1  # linux/prctl.h


def start(count: int, command: list[str], said: str) -> list[subprocess.Popen]:
    nodes, node = int(os.environ.get('NNODES', 1)), int(os.environ.get('NODE_RANK', 0))
    port = os.environ.get('PORT') or ('29500' if nodes > 1 else free_port())
    env = {'OMP_NUM_THREADS': '1', **os.environ, 'DOWNSTREAM_SAID': said, 'MASTER_PORT': port,
           'MASTER_ADDR': os.environ.get('MASTER_ADDR', '127.0.0.1'), 'GROUP_RANK': str(node),
           'WORLD_SIZE': str(nodes * count), 'LOCAL_WORLD_SIZE': str(count)}
    prctl, parent = ctypes.CDLL(None).prctl if sys.platform == 'linux' else None, os.getpid()

    def end_with_parent():
        if prctl:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)

    # In a session of their own: what a terminal sends to all arrives here, and is passed on once.
    return [subprocess.Popen(
        command, start_new_session=True, preexec_fn=end_with_parent,
        env={**env, 'LOCAL_RANK': str(local), 'RANK': str(node * count + local)})
        for local in range(count)]


def free_port() -> str:
    """For one machine: two runs there do not get into each other's way."""
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        return str(free.getsockname()[1])


def pass_signals_on(processes: list) -> list[int]:
    """SIGINT as it is, others as SIGTERM; the third ends the processes at once. Notes them."""
    arrived = []

    def pass_on(number, frame):
        arrived.append(number)
        kill(processes, signal.SIGKILL if len(arrived) > 2 else
             signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)

    for number in signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            signal.signal(number, pass_on)
    return arrived


def kill(processes: list, number: int):
    for process in processes:
        if process.poll() is None:
            process.send_signal(number)


def wait(processes: list) -> dict[int, int]:
    """Wait for all. Returns what those that failed ended with, in the order in which they did."""
    failed, since = {}, None
    while True:
        running = [process.poll() is None for process in processes]
        failed |= {local: process.returncode for local, process in enumerate(processes)
                   if process.returncode and local not in failed}
        if not any(running):
            return failed
        if since is None and set(failed.values()) - {STOPPED}:
            since = time.monotonic()
        killed = -signal.SIGKILL in failed.values()
        if since and time.monotonic() - since > (min(GRACE, KILLED_GRACE) if killed else GRACE):
            ended = dict(failed)
            if {LATE, -signal.SIGABRT} & set(ended.values()):  # as NCCL ends what waited too long
                ask_where(processes)
            kill(processes, signal.SIGKILL)
            [process.wait() for process in processes]
            return ended
        time.sleep(0.1)


def ask_where(processes: list):
    """Have the processes that hang say where they are (processes.guard_forks sees to that)."""
    for local, process in enumerate(processes):
        if process.poll() is None:
            print(f'{name(local, process)} did not come. Where it is:', file=sys.stderr, flush=True)
            process.send_signal(signal.SIGUSR2)
            time.sleep(0.5)


def name(local: int, process: subprocess.Popen) -> str:
    rank = int(os.environ.get('NODE_RANK', 0)) * int(sys.argv[1]) + local
    return f'The process of rank {rank} ({process.pid})'


def verdict(processes: list, failed: dict[int, int]) -> int | str:
    """The status to end with, or what to say (status 1)."""
    causes = {local: status for local, status in failed.items() if status != LOST}
    if STOPPED in causes.values() and not set(causes.values()) - {STOPPED}:
        return STOPPED
    for local, status in causes.items():
        if status < 0 and status != -signal.SIGTERM:
            return (f'error: {name(local, processes[local])} was ended by '
                    f'{signal.Signals(-status).name}'
                    + (': where nobody did that, the memory ran out (dmesg | grep -i oom)'
                       if status == -signal.SIGKILL else ''))
        if status != STOPPED:
            return 128 - status if status < 0 else 1 if status == LATE else status
    return 'error: processes of another machine have gone: look at what it says' if failed else 0


def main(argv):
    with tempfile.TemporaryDirectory() as folder:
        processes = start(int(argv[0]), [sys.executable, *argv[1:]], os.path.join(folder, 'said'))
        arrived = pass_signals_on(processes)
        status = verdict(processes, wait(processes))
    sys.exit(status if len(arrived) < 3 else 128 + signal.SIGKILL)


if __name__ == '__main__':
    main(sys.argv[1:])
