"""Import this first in a tool: it goes over into the environment of `make setup`.

It also lets the tool import the project's packages, and keeps OpenMP threads from spinning while
they wait for each other: where other processes want the cores too (a data loader's workers are
enough), spinning makes training many times slower (docs/benchmarks.md). That has to be set before
torch is loaded.
"""
import os
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

if find_spec('mmengine') is None:
    python = ROOT / '.venv' / 'bin' / 'python'
    if not python.exists():
        sys.exit('error: the environment is not there yet; run `make setup`')
    os.execv(python, [str(python), *sys.argv])
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))
os.environ.setdefault('GOMP_SPINCOUNT', '20000')
