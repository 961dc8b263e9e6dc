"""The models match their releases on other CPUs too: with other vector instructions and threads.

PyTorch and oneDNN choose their kernels by the CPU's instructions, and sums come out in another
order with another number of threads. Each setting needs a process of its own, as it is read when
torch is loaded. The variables act on x86 alone: elsewhere both processes have that machine's own
kernels, and only the number of threads differs.

FocalNet-H is left out: it matches as well, but would add 32 s to 95 s (2 cores), and what it is
built of is in the others too, but for the norm inside of its modulation.
"""
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

TESTS = Path(__file__).resolve().parent
X86 = platform.machine() in ('x86_64', 'AMD64')
# OMP_NUM_THREADS, ATEN_CPU_CAPABILITY, ONEDNN_MAX_CPU_ISA
SETTINGS = {'oldest-1-thread': ('1', 'default', 'SSE41'), 'avx2-2-threads': ('2', 'avx2', 'AVX2')}
COUNT = 18  # tests marked golden, without FocalNet-H
# Says first what PyTorch made of the setting.
PYTEST = ('import sys, pytest, torch; print(torch.backends.cpu.get_cpu_capability(), flush=True); '
          'sys.exit(pytest.main(sys.argv[1:]))')


@pytest.mark.parametrize('setting', SETTINGS)
def test_matches_the_releases(setting):
    threads, capability, isa = SETTINGS[setting]
    if X86 and capability == 'avx2' and torch.backends.cpu.get_cpu_capability() == 'DEFAULT':
        pytest.skip('this CPU has no AVX2')
    files = [path for path in sorted(TESTS.rglob('test_*.py'))
             if '@pytest.mark.golden\n' in path.read_text()]
    done = subprocess.run(
        [sys.executable, '-c', PYTEST, '-m', 'golden', '-k', 'not focalnet_H', '-q',
         '-p', 'no:cacheprovider', *map(str, files)],
        cwd=TESTS.parent, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, 'OMP_NUM_THREADS': threads, 'ATEN_CPU_CAPABILITY': capability,
             'ONEDNN_MAX_CPU_ISA': isa, 'PYTEST_ADDOPTS': ''})
    end = '\n'.join(done.stdout.splitlines()[-40:])
    assert done.returncode == 0, f'{setting}:\n{end}'
    assert re.search(rf'^{COUNT} passed, \d+ deselected', done.stdout, re.MULTILINE), end
    if X86:
        assert done.stdout.splitlines()[0] == capability.upper()
