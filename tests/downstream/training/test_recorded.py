"""A config's text gives its entries back, and runs nothing."""
from pathlib import Path

import pytest
from mmengine.config import Config

from downstream.training.recorded import Text, read_config_text

CONFIGS = Path(__file__).resolve().parents[3] / 'configs'


def plain(node):
    """Lists for tuples."""
    if isinstance(node, dict):
        return {key: plain(value) for key, value in node.items()}
    return [plain(item) for item in node] if isinstance(node, list | tuple) else node


@pytest.mark.parametrize('name', ['mask2former_focalnet_l_coco_panoptic_100e',
                                  'upernet_focalnet_b_160k'])
def test_experiments_come_back(name):
    cfg = Config.fromfile(CONFIGS / f'{name}.py', import_custom_modules=False)
    cfg._format_python_code = False  # yapf takes seconds, and changes spaces alone
    assert len(cfg) > 15 and read_config_text(cfg.pretty_text) == plain(cfg.to_dict())


def test_as_it_is_written_into_checkpoints():
    cfg = Config(dict(a=(1, 2.5e-4, -1), b=[dict(type='X', end=float('inf')), (3,)], c=None, e={},
                      d={'backbone.norm': dict(decay=0.), 'x': {'y-z': 1}}, f=dict, g=[[]]))
    assert read_config_text(cfg.pretty_text) == plain(cfg.to_dict()) | {'f': 'dict'}
    assert read_config_text("{'a-b': 3, 'c': dict(d=[1])}") == {'a-b': 3, 'c': {'d': [1]}}


@pytest.mark.parametrize('text', [
    None, 3, b'a = 1', 'a = (', 'a = 1\n\x00', "{[1]: 2}", 'a = ' + '(' * 300 + ')' * 300,
    'a = ' + '-' * 100_000 + '1', 'a = ' + 'x.' * 50_000 + 'y', 'a = ' + '9' * 10_000,
    'a = 1\n' * 1_000_000])
def test_what_is_no_config(text):
    assert read_config_text(text) is None


def test_nothing_is_run(tmp_path):
    made = tmp_path / 'made'
    run = f"__import__('pathlib').Path({str(made)!r}).touch()"
    found = read_config_text(f'{run}\nimport os\na = {run}\nb = dict(c={run}, d=[1])\n'
                             f'e = dict({run})\n@{run}\ndef f(x={run}): pass\n'
                             'g = 9**9**9\nh = "x" * 10**10\ni = dict(**j)')
    assert not made.exists()
    assert found['a'] == run and found['b'] == dict(c=run, d=[1]) and found['g'] == '9 ** 9 ** 9'
    assert {type(found[key]) for key in 'aeghi'} == {Text}
