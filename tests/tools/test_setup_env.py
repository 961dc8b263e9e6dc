"""Set-up: what it asks of the system, how it picks and builds mmcv, what it says when it fails."""
import importlib.util
import os
import re
import sys
from importlib.metadata import distribution, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location('setup_env', ROOT / 'tools' / 'setup_env.py')
setup_env = importlib.util.module_from_spec(spec)
spec.loader.exec_module(setup_env)


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('#!/bin/bash\n' + text)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize('stack', setup_env.STACKS)
def test_requirements_are_exact_and_headless(stack):
    requirements = setup_env.read_requirements(setup_env.STACKS[stack][1])
    names = [re.fullmatch(r'([\w.-]+)==[\w.]+', line)[1].lower() for line in requirements]
    assert len(set(names)) == len(names)
    assert 'opencv-python-headless' in names and 'opencv-python' not in names
    assert 'torchvision' not in names and 'timm' not in names


@pytest.fixture(scope='module')
def pins():
    """{name: version} of the stack that these tests run with."""
    stack = 'onedl' if importlib.util.find_spec('mmcv') and any(
        'onedl' in name for name in importlib.metadata.packages_distributions()['mmcv']
    ) else 'openmmlab'
    lines = [line.split('==') for line in setup_env.read_requirements(setup_env.STACKS[stack][1])]
    return {canonicalize_name(name): version for name, version in lines}


def test_what_packages_ask_for_is_pinned(pins):
    """All but what is left out on purpose: what `pip check` may still miss."""
    def asked_by(name):
        found = map(Requirement, requires(name) or ())
        return [requirement for requirement in found
                if requirement.marker is None or requirement.marker.evaluate({'extra': ''})]

    # pip brings those
    with_torch = {canonicalize_name(requirement.name) for requirement in asked_by('torch')}
    asked = {}
    for name in pins.keys() - {'torch'}:
        for requirement in asked_by(name):
            name_asked = canonicalize_name(requirement.name)
            pin = pins.get(name_asked)
            if (name_asked not in with_torch if pin is None else
                    pin not in requirement.specifier):
                asked.setdefault(requirement.name, []).append(name)
    assert asked.keys() <= {'opencv-python', 'imagecorruptions-imaug'}, asked


def test_names_a_missing_compiler(monkeypatch):
    monkeypatch.setenv('CXX', 'no-such-compiler -m64')
    monkeypatch.setattr(os, 'geteuid', lambda: 1000)
    with pytest.raises(setup_env.SetupError, match=r"no C\+\+ compiler \('no-such-compiler'\)"
                       r'(.|\n)*sudo apt-get install g\+\+'):
        setup_env.ensure_system_packages()


def test_installs_what_is_missing_when_it_may(monkeypatch):
    monkeypatch.setenv('CXX', 'no-such-compiler')
    monkeypatch.setattr(os, 'geteuid', lambda: 0)
    monkeypatch.setattr(setup_env.shutil, 'which',
                        lambda name: '/usr/bin/apt-get' if name == 'apt-get' else None)
    ran = []
    monkeypatch.setattr(setup_env, 'run', lambda command, **_: ran.append(command))
    with pytest.raises(setup_env.SetupError):  # it is still not there: nothing was really run
        setup_env.ensure_system_packages()
    assert ran[0][:2] == ['apt-get', 'update'] and 'g++' in ran[1]


@pytest.mark.parametrize('apt, root, fails, words', [
    (True, 0, False, 'installing with apt: chromium'),
    (True, 0, True, r'Unable to locate package chromium'),
    (True, 1000, False, 'to have it on Debian: sudo apt-get install chromium'),
    (False, 0, False, 'to have it on Debian')])
def test_a_browser_where_that_is_possible(apt, root, fails, words, monkeypatch, capsys):
    """It is installed or named, and never stops the set-up."""
    monkeypatch.setattr(os, 'geteuid', lambda: root)
    monkeypatch.setattr(setup_env.shutil, 'which',
                        lambda name: '/usr/bin/apt-get' if apt and name == 'apt-get' else None)
    ran = []

    def run(command, **_):
        ran.append(command)
        if fails:
            raise setup_env.SetupError('`apt-get` failed:\nE: Unable to locate package chromium')

    monkeypatch.setattr(setup_env, 'run', run)
    setup_env.ensure_browser()
    said = capsys.readouterr().out
    assert re.search(words, said)
    assert ('is skipped' in said) == (not ran or fails)
    assert bool(ran) == (apt and root == 0) and all('sudo' not in command for command in ran)


def test_only_the_tests_bring_a_browser(monkeypatch, tmp_path):
    for folder in '.venv', '.venv-openmmlab':
        (tmp_path / folder).mkdir()
    done = []
    monkeypatch.setattr(setup_env, 'ROOT', tmp_path)
    monkeypatch.setattr(setup_env, 'set_up', done.append)
    monkeypatch.setattr(setup_env, 'ensure_browser', lambda: done.append('browser'))
    for arguments in [], ['--for-tests']:
        monkeypatch.setattr(sys, 'argv', ['setup_env.py', *arguments])
        setup_env.main()
    assert done == ['onedl', 'onedl', 'browser']
    makefile = (ROOT / 'Makefile').read_text()
    assert re.findall(r'^(\w+):(?:(?!\n\w).)*--for-tests', makefile, re.M | re.S) == ['test']


def test_the_environment_is_checked(tmp_path, monkeypatch):
    """The environment at hand is as it should be; each thing that is not is named."""
    here = tmp_path / 'venv'
    script(here / 'bin' / 'python', f'exec {sys.executable} "$@"')
    version = distribution('pytest').version
    for folder in 'backbones', 'downstream', 'tools', 'tests':
        (tmp_path / folder).mkdir()
    (tmp_path / 'tools' / 'tool.py').write_text(
        'import os.path, broken, backbones.x\nfrom json import loads\nfrom tool import y\n'
        'def f():\n    from pytest import raises\n    from .z import z\n')
    for name in 'backbones', 'downstream':
        (tmp_path / name / '__init__.py').write_text('import numpy\n')
    (tmp_path / 'broken.py').write_text('')
    monkeypatch.setattr(setup_env, 'ROOT', tmp_path)
    assert setup_env.imported_modules(tmp_path) == {
        'numpy': 'backbones/__init__.py', 'broken': 'tools/tool.py', 'pytest': 'tools/tool.py'}
    setup_env.check_environment(here, [f'pytest=={version}'])

    def message(*requirements):
        with pytest.raises(setup_env.SetupError) as caught:
            setup_env.check_environment(here, [*requirements, f'pytest=={version}'])
        assert 'Delete venv and run this again' in str(caught.value)
        return str(caught.value)

    assert message('pytest==0.1').startswith(f'pytest is pinned to 0.1; installed is {version}.')
    assert message('no-such-package==1').startswith(
        'no-such-package is pinned to 1; installed is none.')
    (tmp_path / 'broken.py').write_text('raise ImportError("libGL.so.1: cannot open\\nfile")')
    assert message().startswith('broken, which tools/tool.py imports, cannot be imported: '
                                'ImportError: libGL.so.1: cannot open file.')
    (tmp_path / 'broken.py').write_text('import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)')
    assert message().startswith('broken, which tools/tool.py imports, cannot be imported: '
                                'the process ended with -11.')
    (tmp_path / 'broken.py').write_text('')
    (tmp_path / 'downstream' / '__init__.py').write_text('1 / 0')
    assert message().startswith('downstream, which the project imports, cannot be imported: '
                                'ZeroDivisionError')


def test_all_that_is_imported_is_found():
    found = setup_env.imported_modules(ROOT)
    assert {'torch', 'mmcv.ops', 'mmdet.models.detectors', 'cv2', 'hotcoco.panoptic',
            'pytest'} <= found.keys()
    assert not {'backbones', 'downstream', 'golden_utils', 'in_venv', 'os'} & found.keys()
    # A new environment would be refused, while an old one, set up before, goes on.
    assert [name for name in found if not importlib.util.find_spec(name.split('.')[0])] == []


def test_nothing_changed_nothing_done(monkeypatch, tmp_path):
    for name in setup_env.STACKS['onedl'][1]:
        (tmp_path / name).write_text((ROOT / name).read_text())
    monkeypatch.setattr(setup_env, 'ROOT', tmp_path)
    stamp = tmp_path / '.venv' / 'stamp'
    stamp.parent.mkdir()
    stamp.write_text(setup_env.fingerprint(setup_env.STACKS['onedl'][1]))

    def too_far(*_, **__):
        raise AssertionError('something was run')

    monkeypatch.setattr(setup_env, 'run', too_far)
    monkeypatch.setattr(setup_env, 'ensure_system_packages', too_far)
    setup_env.set_up('onedl')
    (tmp_path / 'requirements.txt').write_text('torch==9.9.9\n')
    with pytest.raises(AssertionError, match='something was run'):
        setup_env.set_up('onedl')


def make_target(tmp_path, nvcc_release=None):
    """What is probed on a machine with a GPU and maybe nvcc."""
    if nvcc_release:
        script(tmp_path / 'cuda/bin/nvcc',
               f'echo "Cuda compilation tools, release {nvcc_release}, V{nvcc_release}.1"')
    probe = f'2.13.0+cu126\ncp311-linux_x86_64\n9.0\n12.6\n{tmp_path / "cuda"}\n-isystem /torch'
    script(tmp_path / 'venv/bin/python', f'cat <<END\n{probe}\nEND')
    return setup_env.Target(tmp_path / 'venv')


def test_gpu_with_its_compiler(tmp_path, capsys):
    target = make_target(tmp_path, '12.4')
    assert target.key == 'torch2.13.0+cu126-cp311-linux_x86_64-sm9.0'
    assert target.env()['TORCH_CUDA_ARCH_LIST'] == '9.0'
    assert 'CUDA_VISIBLE_DEVICES' not in target.env() or os.environ.get('CUDA_VISIBLE_DEVICES')
    assert not capsys.readouterr().out


@pytest.mark.parametrize('release, reason', [(None, 'nvcc, the CUDA compiler, was not found'),
                                             ('11.8', 'nvcc is of CUDA 11, torch of CUDA 12.6')])
def test_gpu_without_a_fitting_compiler(tmp_path, capsys, release, reason):
    target = make_target(tmp_path, release)
    assert target.key.endswith('-cpu') and target.env()['CUDA_VISIBLE_DEVICES'] == ''
    said = capsys.readouterr().out
    assert reason in said and 'Install the CUDA toolkit 12.6' in said


def fake_venv(tmp_path, wheel):
    """A python whose pip downloads a source archive and then does what ``wheel`` says."""
    return script(tmp_path / 'venv/bin/python', rf'''
    out() {{ while [ $# -gt 0 ]; do case $1 in -d|-w) echo "$2"; return;; esac; shift; done; }}
    case "$*" in
      *" download "*) dir=$(out "$@"); mkdir -p src/mmcv-1.0
                      touch src/mmcv-1.0/pytorch_cpp_helper.hpp
                      tar czf "$dir/mmcv-1.0.tar.gz" -C src mmcv-1.0 ;;
      *" wheel "*) dir=$(out "$@"); {wheel} ;;
      *) echo true ;;
    esac''').parent.parent


def build(tmp_path, monkeypatch, wheel):
    venv = fake_venv(tmp_path, wheel)
    monkeypatch.chdir(tmp_path)
    target = object.__new__(setup_env.Target)
    target.torch, target.tag, target.cuda, target.includes = '2.13.0', 'cp311-linux', False, []
    return setup_env.build_wheel(venv, 'mmcv==1.0', target, tmp_path / 'cache' / target.key,
                                 tmp_path / 'build.log')


def test_a_built_wheel_is_cached_by_what_it_was_built_for(tmp_path, monkeypatch, capsys):
    wheel = build(tmp_path, monkeypatch,
                  'echo "[1/2] c++ a.cpp"; echo "CFLAGS $CFLAGS"; touch $dir/mmcv-1.0-cp311.whl')
    assert wheel == tmp_path / 'cache/torch2.13.0-cp311-linux-cpu/mmcv-1.0-cp311.whl'
    assert setup_env.cached_wheel(wheel.parent) == wheel
    assert '1 of 2 files compiled' in capsys.readouterr().out
    assert re.search(r'CFLAGS -g0 -O2 -w -include \S+pytorch_cpp_helper.hpp',
                     (tmp_path / 'build.log').read_text())


def test_a_failed_build_shows_the_compilers_words(tmp_path, monkeypatch):
    with pytest.raises(setup_env.SetupError) as error:
        build(tmp_path, monkeypatch,
              'seq 100; echo "nms.cpp:7:2: error: torch/types.h: No such file"; seq 100; exit 1')
    message = str(error.value)
    assert 'nms.cpp:7:2: error: torch/types.h: No such file' in message
    assert 'apt-get install g++ python3' in message and 'MAX_JOBS=1' in message
    assert str(tmp_path / 'build.log') in message
    assert setup_env.cached_wheel(tmp_path / 'cache') is None


def test_errors_end_in_one_message(monkeypatch, tmp_path):
    monkeypatch.setattr(setup_env, 'ROOT', tmp_path)
    monkeypatch.setattr(sys, 'argv', ['setup_env.py'])

    def fail(stack):
        raise setup_env.SetupError('the reason')

    monkeypatch.setattr(setup_env, 'set_up', fail)
    with pytest.raises(SystemExit, match=r'\[setup\] the reason'):
        setup_env.main()
