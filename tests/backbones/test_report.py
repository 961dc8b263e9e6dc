"""``python -m backbones``: the environment report."""
from backbones.__main__ import operations, report, version


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
