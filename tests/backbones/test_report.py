"""``python -m backbones``: the environment report."""
import subprocess

import pytest

from backbones import __main__ as module
from backbones.__main__ import operations, report, revision, version


def test_report_names_what_matters():
    rows = dict(report())
    assert rows['torch'].startswith('2.')
    for name in ('mmengine', 'mmcv', 'mmdet', 'mmseg'):
        assert rows[name][0].isdigit() and '(' in rows[name], rows[name]
    assert rows['mmcv operations, cpu'] == 'work'
    assert 'FocalNet' in rows['backbones']


def test_broken_installs_are_reported_not_raised():
    assert version('no_such_package').startswith('not importable (ModuleNotFoundError')
    assert operations('meta').startswith('do not work (')


@pytest.mark.parametrize('tracked', [False, True], ids=['installed', 'checkout'])
def test_revision_is_that_of_the_package(tmp_path, monkeypatch, tracked):
    """And not of the repository in which somebody's environment happens to lie."""
    file = tmp_path / '.venv' / 'site-packages' / 'backbones' / '__main__.py'
    file.parent.mkdir(parents=True)
    file.touch()
    (tmp_path / 'theirs.py').touch()
    monkeypatch.setattr(module, '__file__', str(file))
    for command in (['init', '-q'], ['add', file if tracked else 'theirs.py'],
                    ['-c', 'user.name=x', '-c', 'user.email=x@x', 'commit', '-q', '-m', 'x'],
                    ['-c', 'user.name=x', '-c', 'user.email=x@x', 'tag', '-m', 'x', 'v7']):
        subprocess.run(['git', *command], cwd=tmp_path, check=True)
    if tracked:
        assert revision() == 'v7'
    else:
        assert revision() == 'unknown (neither a git checkout nor an installed package)'
        monkeypatch.setattr(module, 'DISTRIBUTION', 'pytest')
        assert revision() == f'{pytest.__version__} (installed)'
