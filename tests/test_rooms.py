"""The house: which module may know which, what a command is, where a module's tests are."""
import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = 'data', 'heads', 'training', 'scoring', 'looking'  # each knows those before it
LONGEST = 100  # lines of a command
# What backbones/ needs: torch and mmengine, with what those bring, and safetensors.
NEEDED = {'torch', 'numpy', 'mmengine', 'rich', 'yaml', 'safetensors'}
# What all commands begin with; what runs before the packages, and before the processes.
NOT_COMMANDS = 'in_venv', 'setup_env', 'launch'


def imported(path: Path, root: Path) -> list[str]:
    """Dotted names of the modules (or what is in them) that a file imports, in functions too."""
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = path.relative_to(root).parts[:-node.level] if node.level else ()
            module = '.'.join([*package, *filter(None, [node.module])])
            names += [f'{module}.{alias.name}' for alias in node.names]
    return names


def modules(folder: Path) -> list[Path]:
    return sorted(folder.rglob('*.py'))


def commands(root: Path) -> list[Path]:
    return [path for path in modules(root / 'tools') if path.stem not in NOT_COMMANDS]


def wrong_arrows(root: Path) -> list[str]:
    """Imports against the order: backbones, the root of downstream/, its rooms, tools."""
    alone = {path.stem for path in (root / 'downstream').glob('*.py')} - {'__init__'}
    tools = {path.stem for path in modules(root / 'tools')}
    found = []
    for path in [*modules(root / 'backbones'), *modules(root / 'downstream')]:
        package, *rest = path.relative_to(root).parts
        if rest == ['__init__.py'] and package == 'downstream':
            continue  # it imports the rooms, so that they register what is theirs
        room = rest[0] if package == 'downstream' and len(rest) > 1 else None
        known = (set() if package == 'backbones' else
                 alone | set(ROOMS[:1 + ROOMS.index(room)]) if room else alone)
        for name in imported(path, root):
            first, *inner = name.split('.')
            if first in tools or first == 'downstream' and (not inner or inner[0] not in known):
                found.append(f'{path.relative_to(root)} imports {name}')
    return found


def foreign_packages(root: Path) -> list[str]:
    """What backbones/ imports beside what it may need; its report looks for mmcv."""
    return [f'{path.relative_to(root)} imports {name}' for path in modules(root / 'backbones')
            if path.name != '__main__.py' for name in imported(path, root)
            if name.split('.')[0] not in NEEDED | sys.stdlib_module_names | {'backbones'}]


def not_commands(root: Path) -> list[str]:
    """Commands that are more than that: long ones, and those that others are made of."""
    stems = {path.stem for path in modules(root / 'tools')} - {'in_venv'}
    found = []
    for path in commands(root):
        length = len(path.read_text(encoding='utf-8').splitlines())
        if length > LONGEST:
            found.append(f'{path.name} has {length} lines')
        found += [f'{path.name} imports {name}' for name in imported(path, root)
                  if name.split('.')[0] in stems]
    return found


def stale_names(root: Path) -> list[str]:
    """Rooms without tests, and tests named after a module or room that is not there."""
    rooms, tests = root / 'downstream', root / 'tests' / 'downstream'
    found = [f'{folder.name} is no room' for folder in rooms.iterdir()
             if (folder / '__init__.py').is_file() and folder.name not in ROOMS]
    found += [f'{room} is not there' for room in ROOMS if not (rooms / room).is_dir()]
    found += [f'{room} has no tests' for room in ROOMS
              if not any((tests / room).glob('test_*.py'))]
    for path in sorted(tests.rglob('test_*.py')):
        if path.name == 'test_fuzz.py':  # of all that its room reads
            continue
        module = path.relative_to(tests).with_name(path.name.removeprefix('test_'))
        if not (rooms / module).is_file():
            found.append(f'{path.relative_to(root)} tests no downstream/{module.as_posix()}')
    return found


@pytest.mark.parametrize('check', [wrong_arrows, foreign_packages, not_commands, stale_names])
def test_the_house(check):
    assert check(ROOT) == []


HOUSE = {
    'backbones/net.py': 'import torch\n',
    'downstream/__init__.py': 'from . import data, heads\nfrom .errors import UserError\n',
    'downstream/errors.py': 'import sys\n',
    **{f'downstream/{room}/__init__.py': '' for room in ROOMS},
    **{f'downstream/{room}/part.py': 'from ..data.part import x\nfrom ..errors import UserError\n'
       for room in ROOMS},
    **{f'tests/downstream/{room}/test_part.py': '' for room in ROOMS},
    'tests/downstream/test_errors.py': '',
    'tools/in_venv.py': 'x = 1\n' * 200,
    'tools/setup_env.py': 'x = 1\n' * 200,
    'tools/go.py': 'import in_venv\nfrom downstream.looking.part import x\n' + '\n' * 98,
}


@pytest.mark.parametrize('check, file, text, complaint', [
    (wrong_arrows, 'downstream/heads/part.py', 'def f():\n    from ..training import part\n',
     'downstream/heads/part.py imports downstream.training.part'),
    (wrong_arrows, 'downstream/data/part.py', 'from .. import scoring\n',
     'downstream/data/part.py imports downstream.scoring'),
    (wrong_arrows, 'downstream/data/__init__.py', 'import downstream.looking.part as p\n',
     'downstream/data/__init__.py imports downstream.looking.part'),
    (wrong_arrows, 'downstream/looking/part.py', 'import downstream\n',
     'downstream/looking/part.py imports downstream'),
    (wrong_arrows, 'downstream/errors.py', 'from .data.part import x\n',
     'downstream/errors.py imports downstream.data.part.x'),
    (wrong_arrows, 'downstream/looking/part.py', 'import go\n',
     'downstream/looking/part.py imports go'),
    (wrong_arrows, 'backbones/net.py', 'from downstream.errors import UserError\n',
     'backbones/net.py imports downstream.errors.UserError'),
    (foreign_packages, 'backbones/net.py', 'def f():\n    from prettytable import PrettyTable\n',
     'backbones/net.py imports prettytable.PrettyTable'),
    (not_commands, 'tools/go.py', 'x = 1\n' * 101, 'go.py has 101 lines'),
    (not_commands, 'tools/come.py', 'def f():\n    from go import x\n', 'come.py imports go.x'),
    (stale_names, 'tests/downstream/heads/test_old.py', '',
     'tests/downstream/heads/test_old.py tests no downstream/heads/old.py'),
    (stale_names, 'tests/downstream/test_part.py', '',
     'tests/downstream/test_part.py tests no downstream/part.py'),
    (stale_names, 'downstream/attic/__init__.py', '', 'attic is no room'),
])
def test_what_breaks_the_order_is_named(check, file, text, complaint, tmp_path):
    for name, content in HOUSE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert check(tmp_path) == []
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    assert check(tmp_path) == [complaint]
