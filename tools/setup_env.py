#!/usr/bin/env python3
"""Set up the project's virtual environment: python3 tools/setup_env.py [--stack STACK].

Installs, in this order: torch; mmcv's compiled ops, built against that very torch; everything
else, exactly as pinned. Then checks that every version is the pinned one and that everything the
project imports can be imported. Needs nothing but the standard library, a C++ compiler and pip's
registry. Run again, it returns at once unless a requirement, this file or Python has changed.

With --for-tests it brings what only the tests use: Chromium, in which they open a report.

The ops are the slow part: upstream's build parses torch's headers some hundred times with -O3 -g.
Here they are parsed once, into a precompiled header, while pip fetches the other packages; the
wheel is then kept outside the repository under the torch, Python, platform and CUDA architecture
it was built for, so that the next clone only installs it. Environment variables:

  PYTHON            the interpreter to build the environment with (make passes it on)
  MMCV_WHEEL_CACHE  where built wheels are kept (default: ~/.cache/mmcv-wheels)
  MAX_JOBS          compiler processes at a time (default: one a core)
"""
import argparse
import ast
import contextlib
import fcntl
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# What tests run on, transformers included where its pinned version runs.
FOR_TESTS = ['requirements-dev.txt',
             *['requirements-transformers.txt'] * (sys.version_info >= (3, 11))]
# The stack's name: (virtual environment, requirement files).
STACKS = {
    'onedl': ('.venv', ['requirements.txt', *FOR_TESTS]),
    'openmmlab': ('.venv-openmmlab', ['requirements-openmmlab.txt', *FOR_TESTS]),
}
# What the project imports only where a person has installed it and asks for it.
OPTIONAL = {'tensorboard', 'wandb'}
# Runs in the new environment: the ops load, and one of them computes the right thing.
CHECK_OPS = """
import torch
from mmcv.ops import nms
boxes = torch.tensor([[0., 0., 10., 10.], [0., 0., 10., 9.], [20., 20., 30., 30.]])
scores = torch.tensor([0.9, 0.8, 0.7])
for device in ['cpu'] + (['cuda'] if {cuda} else []):
    kept = nms(boxes.to(device), scores.to(device), 0.5)[1].tolist()
    assert kept == [0, 2], kept
"""
# Runs in the new environment: what the build will be for.
PROBE = """
import platform, sysconfig, torch
from torch.utils.cpp_extension import CUDA_HOME, include_paths
print(torch.__version__)
print('cp%s%s-%s' % (*platform.python_version_tuple()[:2],
                     sysconfig.get_platform().replace('-', '_')))
gpu = torch.cuda.is_available()
print('.'.join(map(str, torch.cuda.get_device_capability())) if gpu else '')
print(torch.version.cuda or '')
print(CUDA_HOME or '')
print(' '.join('-isystem ' + p for p in include_paths()))
"""
# Runs in the new environment, with requirements NAME==VERSION: the first that is not there so.
CHECK_VERSIONS = """
import sys
from importlib.metadata import PackageNotFoundError, version
for name, wanted in (line.split('==') for line in sys.argv[1:]):
    try:
        found = version(name)
    except PackageNotFoundError:
        found = 'none'
    if wanted != (found if '+' in wanted else found.split('+')[0]):
        sys.exit(f'{name} is pinned to {wanted}; installed is {found}')
"""
# Runs in the new environment, with names of modules: the last one printed is the one that failed,
# even where it took the process down with it.
CHECK_IMPORTS = """
import importlib, sys
for name in sys.argv[1:]:
    print(name, file=sys.stderr, flush=True)
    try:
        importlib.import_module(name)
    except BaseException as error:
        words = ' '.join(str(error).split())
        sys.exit(f'{name}\\n{type(error).__name__}: {words}')
"""
# The compiler's command line as setuptools will use it (flags of this Python, then CFLAGS).
COMPILER = """
import shlex
from setuptools._distutils.ccompiler import new_compiler
from setuptools._distutils.sysconfig import customize_compiler
compiler = new_compiler()
customize_compiler(compiler)
print(shlex.join(compiler.compiler_so_cxx))
"""


class SetupError(Exception):
    """Something the person at the keyboard has to decide or install."""


def say(message: str) -> None:
    print(f'[setup] {message}', flush=True)


def run(command, **kwargs):
    """Run a command quietly; when it fails, show the end of what it said."""
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          **kwargs)
    if done.returncode:
        raise SetupError(f'`{shlex.join(map(str, command))}` failed:\n'
                         + '\n'.join(done.stdout.strip().splitlines()[-25:]))
    return done.stdout


def python_of(venv: Path) -> Path:
    return venv / 'bin' / 'python'


def pip(venv: Path, *args, **kwargs):
    return run([python_of(venv), '-m', 'pip', '--disable-pip-version-check', *args], **kwargs)


# -- what the system has to bring --------------------------------------------------------------

def missing_system_packages():
    """Debian packages that this machine lacks, each with the reason it is needed."""
    missing = {}
    version = f'python3.{sys.version_info.minor}'
    compiler = os.environ.get('CXX', 'c++').split()[0]
    if not shutil.which(compiler):
        missing['g++'] = f"no C++ compiler ('{compiler}') for mmcv's operations"
    if not (Path(sysconfig.get_paths()['include']) / 'Python.h').exists():
        missing[f'{version}-dev'] = 'no Python.h to compile against'
    if importlib.util.find_spec('ensurepip') is None:
        missing[f'{version}-venv'] = 'no ensurepip for a virtual environment'
    return missing


def with_reasons(packages) -> str:
    return '; '.join(f'{name} ({why})' for name, why in packages.items())


def apt_install(packages) -> bool:
    """Install Debian packages, {name: why}, where there is apt and it may; whether that was so."""
    if not shutil.which('apt-get') or os.geteuid() != 0:
        return False
    say(f'installing with apt: {with_reasons(packages)}')
    env = dict(os.environ, DEBIAN_FRONTEND='noninteractive')
    run(['apt-get', 'update', '-q'], env=env)
    run(['apt-get', 'install', '-q', '-y', '--no-install-recommends', *packages], env=env)
    return True


def ensure_system_packages():
    missing = missing_system_packages()
    if not missing:
        return
    reasons = with_reasons(missing)
    if apt_install(missing):
        missing = missing_system_packages()
    if missing:
        names = ' '.join(missing)
        raise SetupError(f'system packages are missing: {reasons}.\n'
                         f'On Debian or Ubuntu: sudo apt-get install {names}')


def ensure_browser():
    """Chromium, for the tests. They skip what needs it where it cannot be had, so nothing fails."""
    if shutil.which('chromium'):
        return
    try:
        if apt_install({'chromium': 'a test opens a report in it'}):
            return
        reason = 'to have it on Debian: sudo apt-get install chromium'
    except SetupError as error:  # no network, or Ubuntu, whose apt has it as a snap only
        reason = str(error)
    say(f'no Chromium: the test that opens a report in a browser is skipped ({reason})')


# -- mmcv's operations -------------------------------------------------------------------------

class Target:
    """What the ops are built for: read from the torch that the environment really has."""

    def __init__(self, venv: Path):
        lines = run([python_of(venv), '-W', 'ignore', '-c', PROBE]).splitlines()
        self.torch, self.tag, self.capability, self.torch_cuda, self.cuda_home, includes = lines
        self.includes = shlex.split(includes)
        self.cuda = bool(self.capability) and self._nvcc_fits()

    def _nvcc_fits(self) -> bool:
        """Whether the CUDA compiler is there and of the version that torch was built with."""
        nvcc = Path(self.cuda_home or '/nowhere') / 'bin' / 'nvcc'
        wanted = self.torch_cuda
        if not nvcc.exists():
            reason = 'nvcc, the CUDA compiler, was not found'
        else:
            found = re.search(r'release (\d+)\.(\d+)', run([nvcc, '--version']))
            if found and found[1] == wanted.split('.')[0]:
                return True
            reason = f'nvcc is of CUDA {found[1] if found else "?"}, torch of CUDA {wanted}'
        say(f"this machine has a GPU, but {reason}: mmcv's operations are built for the CPU only, "
            'so that RoIAlign, NMS and deformable attention fail on GPU tensors. Install the CUDA '
            f'toolkit {wanted} (or point CUDA_HOME at it), delete .venv and run this again.')
        return False

    @property
    def key(self) -> str:
        return f'torch{self.torch}-{self.tag}-{"sm" + self.capability if self.cuda else "cpu"}'

    def env(self):
        env = dict(os.environ)
        env.setdefault('MAX_JOBS', str(len(os.sched_getaffinity(0))))
        if self.cuda:
            env.setdefault('TORCH_CUDA_ARCH_LIST', self.capability)
        else:  # mmcv builds for CUDA whenever torch sees a GPU
            env['CUDA_VISIBLE_DEVICES'] = ''
        return env


def what_fails(venv: Path, target: Target) -> str:
    """Try the installed ops. Returns the last line of the error, or '' when they work."""
    check = CHECK_OPS.format(cuda=target.cuda)
    done = subprocess.run([python_of(venv), '-W', 'ignore', '-c', check], cwd=ROOT, text=True,
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    words = done.stderr.strip().splitlines() or [f'status {done.returncode}']
    return words[-1] if done.returncode else ''


def install_wheel(venv: Path, wheel: Path):
    pip(venv, 'install', '-q', '--no-deps', '--force-reinstall', wheel)


def cached_wheel(folder: Path):
    return next(iter(sorted(folder.glob('*.whl'))), None)


def prebuilt_wheel(venv: Path, requirement: str, folder: Path):
    """A wheel that pip's configured indexes offer, or None. Whether it fits is tried later."""
    with contextlib.suppress(SetupError):
        pip(venv, 'download', '-q', '--no-deps', '--only-binary=:all:', '-d', folder, requirement)
    return cached_wheel(folder)


def precompile_header(venv: Path, source: Path, target: Target, env) -> str:
    """Parse torch's headers once. Returns the CFLAGS that make every source file use the result.

    gcc takes a precompiled header only when all flags and macros agree with the compilation at
    hand, hence the very command line of the build. Whatever differs, the plain header beside it
    is read instead: slower, never wrong.
    """
    flags = '-g0 -O2 -w'
    header = source / 'precompiled' / 'pytorch_cpp_helper.hpp'
    header.parent.mkdir()
    shutil.copy(next(source.rglob('pytorch_cpp_helper.hpp')), header)
    command = shlex.split(run([python_of(venv), '-W', 'ignore', '-c', COMPILER],
                              env={**env, 'CFLAGS': flags, 'CXXFLAGS': flags}))
    macros = ['-DMMCV_WITH_CUDA'] if target.cuda else []
    with contextlib.suppress(SetupError):
        run([*command, *macros, *target.includes, f'-I{sysconfig.get_paths()["include"]}',
             '-fPIC', '-std=c++17', '-DTORCH_API_INCLUDE_EXTENSION_H',
             '-DTORCH_EXTENSION_NAME=_ext', '-x', 'c++-header', header,
             '-o', f'{header}.gch'], env=env)
    return f'{flags} -include {header}'


def build_wheel(venv: Path, requirement: str, target: Target, folder: Path, log: Path) -> Path:
    """Build mmcv with its ops, showing how far the compiler is."""
    env = target.env()
    with tempfile.TemporaryDirectory() as tmp:
        tmp = Path(tmp)
        pip(venv, 'download', '-q', '--no-deps', '--no-build-isolation', '--no-binary=:all:',
            '-d', tmp, requirement, env=env)
        archive = next(tmp.glob('*.tar.gz'))
        with tarfile.open(archive) as tar:
            # the 'data' filter (no path may leave the folder) came with later patch releases
            tar.extractall(tmp, **({'filter': 'data'} if hasattr(tarfile, 'data_filter') else {}))
        source = next(path for path in tmp.iterdir() if path.is_dir())
        env['CFLAGS'] = env['CXXFLAGS'] = precompile_header(venv, source, target, env)
        env['MMCV_WITH_OPS'] = '1'
        command = [python_of(venv), '-m', 'pip', '--disable-pip-version-check', 'wheel', '-v',
                   '--no-deps', '--no-build-isolation', '--no-cache-dir', '-w', tmp, source]
        start = time.monotonic()
        build = subprocess.Popen(list(map(str, command)), env=env, text=True, errors='replace',
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        shown = 0.0
        with log.open('w') as file:
            for line in build.stdout:
                file.write(line)
                step = re.search(r'\[(\d+)/(\d+)\]', line)
                now = time.monotonic()
                if step and now - shown > 10:
                    done, total = map(int, step.groups())
                    left = (now - start) / done * (total - done)
                    say(f"mmcv's operations: {done} of {total} files compiled, "
                        f'about {left:.0f} s left')
                    shown = now
        if build.wait():
            lines = log.read_text().splitlines()
            first = next((i for i, line in enumerate(lines) if 'error:' in line), None)
            excerpt = lines[max(0, first - 3):first + 20] if first is not None else lines[-25:]
            raise SetupError(
                f"mmcv's operations did not compile ({requirement}, {target.key}). "
                'The compiler said:\n  ' + '\n  '.join(excerpt) + f'\nWhole log: {log}\n'
                'Needed: a C++17 compiler and the Python headers (Debian, Ubuntu: apt-get install '
                f'g++ python3.{sys.version_info.minor}-dev), 2 GB of memory a job (set MAX_JOBS=1 '
                "on a small machine), and for GPU operations torch's CUDA toolkit.")
        wheel = cached_wheel(tmp)
        folder.mkdir(parents=True, exist_ok=True)
        # named last, in one step: an interrupted copy is never taken for a wheel
        partial = shutil.copy(wheel, folder / f'{wheel.name}.{os.getpid()}')
        return Path(partial).rename(folder / wheel.name)


def install_ops(venv: Path, requirement: str, others_are_there):
    """mmcv with working ops: from the cache, from a pre-built wheel, or built here.

    ``others_are_there()`` waits for the packages that mmcv imports; a build need not wait.
    """
    target = Target(venv)
    cache = Path(os.environ.get('MMCV_WHEEL_CACHE')
                 or Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache')
                 / 'mmcv-wheels')
    folder = cache / requirement.replace('==', '-') / target.key
    with tempfile.TemporaryDirectory() as tmp:
        for find in (lambda: cached_wheel(folder),
                     lambda: prebuilt_wheel(venv, requirement, Path(tmp))):
            wheel = find()
            if wheel:
                others_are_there()
                install_wheel(venv, wheel)
                failure = what_fails(venv, target)
                if not failure:
                    return say(f'{requirement}: {wheel.name} for {target.key}')
                say(f'{wheel} does not work here ({failure}) and is left aside')
    say(f'{requirement}: compiling its operations for {target.key} (about 2 minutes on 2 cores, '
        'once a machine)')
    start = time.monotonic()
    wheel = build_wheel(venv, requirement, target, folder, venv / 'mmcv-build.log')
    say(f'compiled in {time.monotonic() - start:.0f} s')
    others_are_there()
    install_wheel(venv, wheel)
    failure = what_fails(venv, target)
    if failure:
        raise SetupError(f"mmcv's operations compiled but do not work: {failure}")


# -- the environment ---------------------------------------------------------------------------

def read_requirements(names):
    lines = [line.split('#')[0].strip()
             for name in names for line in (ROOT / name).read_text().splitlines()]
    return [line for line in lines if line]


def fingerprint(names) -> str:
    """Changes whenever the environment would come out differently."""
    digest = hashlib.sha256(sys.version.encode() + str(ROOT).encode())
    for path in [Path(__file__), *(ROOT / name for name in names)]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def imported_modules(root: Path) -> dict[str, str]:
    """{module: a file that imports it} of the modules from elsewhere that the project needs."""
    files = [path for folder in ('backbones', 'downstream', 'tools', 'tests')
             for path in sorted((root / folder).rglob('*.py'))]
    own = {'backbones', 'downstream', *(path.stem for path in files)}
    found = {}
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
            names = ([alias.name for alias in node.names] if isinstance(node, ast.Import) else
                     [node.module] if isinstance(node, ast.ImportFrom) and not node.level else [])
            for name in names:
                if name.split('.')[0] not in sys.stdlib_module_names | own | OPTIONAL:
                    found.setdefault(name, str(path.relative_to(root)))
    return found


def check_environment(venv: Path, requirements):
    """What `pip check` would be for, which cannot come out clean here.

    It misses opencv-python, in whose place opencv-python-headless is installed on purpose, and
    packages that others declare but never import (requirements.txt). What counts is that each
    package has the version that it is pinned to, and that what the project imports can be.

    Raises:
        SetupError: names the first package or module with which that is not so.
    """
    again = f'Delete {venv.name} and run this again.'

    def words(check, *args):
        done = subprocess.run([python_of(venv), '-W', 'ignore', '-c', check, *args], cwd=ROOT,
                              text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        return done.returncode, done.stderr.strip().splitlines()

    status, said = words(CHECK_VERSIONS, *requirements)
    if status:
        raise SetupError(f'{said[-1] if said else f"status {status}"}. {again}')
    modules = imported_modules(ROOT)
    # ours last: they take what mmdet and mmseg register
    status, said = words(CHECK_IMPORTS, *modules, 'backbones', 'downstream')
    if status:
        name, error = said[-2:] if status == 1 else (said[-1], f'the process ended with {status}')
        raise SetupError(f'{name}, which {modules.get(name, "the project")} imports, cannot be '
                         f'imported: {error}. {again}')


def set_up(stack: str):
    folder, names = STACKS[stack]
    venv = ROOT / folder
    stamp = venv / 'stamp'
    wanted = fingerprint(names)
    if stamp.exists() and stamp.read_text() == wanted:
        return
    if sys.version_info < (3, 10):  # noqa: UP036 - this file is what finds out
        raise SetupError(f'Python 3.10 or later is needed, this is {sys.version.split()[0]}. '
                         'Name another one: make setup PYTHON=python3.11')
    start = time.monotonic()
    ensure_system_packages()
    if not python_of(venv).exists() or subprocess.run(
            [python_of(venv), '-c', f'import pip, sys; assert sys.version == {sys.version!r}'],
            capture_output=True).returncode:
        say(f'creating {folder} with Python {sys.version.split()[0]}')
        run([sys.executable, '-m', 'venv', '--clear', venv])
    requirements = read_requirements(names)
    torch = [r for r in requirements if r.startswith('torch==')]
    mmcv = next(r for r in requirements if re.match(r'(onedl-)?mmcv==', r))
    build = [r for r in requirements if re.match(r'(setuptools|wheel|ninja|numpy|packaging)\b', r)]
    others = [r for r in requirements if r not in torch + [mmcv] + build]
    say(f'installing {torch[0]}')
    pip(venv, 'install', '-q', *torch, *build)
    say(f'installing {len(others)} other packages')
    # Everything is pinned, so no package may bring dependencies of its own: some ask for
    # opencv-python, which needs libGL, where opencv-python-headless does the same work.
    # The downloads wait for the network while the compiler keeps the cores busy.
    with ThreadPoolExecutor(1) as pool:
        installation = pool.submit(pip, venv, 'install', '-q', '--no-deps', *others)
        install_ops(venv, mmcv, installation.result)
    check_environment(venv, requirements)
    stamp.write_text(wanted)
    say(f'{folder} is ready after {time.monotonic() - start:.0f} s')


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--stack', choices=STACKS, default='onedl',
                        help='the maintained forks (default) or the original OpenMMLab packages')
    parser.add_argument('--for-tests', action='store_true',
                        help='bring Chromium too, where apt may install it')
    args = parser.parse_args()
    lock_path = ROOT / (STACKS[args.stack][0] + '.lock')
    try:
        with lock_path.open('w') as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # `make test` and `make demo` may start together
            set_up(args.stack)
            if args.for_tests:
                ensure_browser()
    except SetupError as error:
        sys.exit(f'[setup] {error}')


if __name__ == '__main__':
    main()
