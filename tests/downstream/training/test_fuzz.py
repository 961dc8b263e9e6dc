"""--cfg-options with anything in them: a config that has what was said, or one message."""
import argparse
from pathlib import Path

import pytest
from fuzzing import bounded, examples
from hypothesis import given
from hypothesis import strategies as st
from mmengine.config import Config

from downstream.errors import UserError, printable
from downstream.training.launching import add_config_options, parse, read_config

CONFIG = Path(__file__).resolve().parents[3] / 'configs' / 'demo' / 'maskrcnn_focalnet.py'
PLAIN = Config.fromfile(CONFIG, import_custom_modules=False)


def paths(node, before='') -> list[str]:
    """The names of all entries, as --cfg-options has them."""
    pairs = node.items() if isinstance(node, dict) else enumerate(node)
    return [path for key, value in pairs for name in [f'{before}{key}'] for path in (
        [name] + (paths(value, f'{name}.') if isinstance(value, dict | list) else []))]


KEYS = st.one_of(
    st.sampled_from(sorted(paths(PLAIN._cfg_dict.to_dict()))),
    st.tuples(st.sampled_from(sorted(PLAIN)), st.text(max_size=5)).map('.'.join),
    st.sampled_from(['a.b', '.', '', '..', 'model.', '.model', 'model..type', 'model.0',
                     'train_dataloader.dataset.pipeline.99.type', '_delete_', 'model._delete_',
                     '__class__', 'model.__init__', '_cfg_dict', 'custom_imports.imports',
                     'work_dir', 'load_from', 'env_cfg', 'model.backbone.keys']))
WORDS = st.one_of(
    st.integers().map(str), st.floats().map(str), st.text(max_size=12),
    st.sampled_from(['abc', 'True', 'None', 'none', '[]', '()', '[1,2', '1,2]', '(1,2),[3', '[[1]]',
                     '{}', '{1:2}', '"a"', "'", '$HOME', '{{$HOME:x}}', '{{ fileBasename }}',
                     '=', 'a=b', '--data', '-1', '1e999', '0x10', '1_000', '[' * 300, '(' * 3000,
                     '9' * 5000, '\x1b[2J', '\0', '__import__("os").system("touch evil")']))
OPTIONS = st.lists(st.one_of(st.tuples(KEYS, WORDS).map('='.join), WORDS), min_size=1, max_size=3)


@examples(40)
@given(OPTIONS)
def test_fuzz_options(options):
    with bounded() as folder, pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        parser = argparse.ArgumentParser(exit_on_error=False)
        add_config_options(parser)
        try:
            args = parse(parser, ['--cfg-options', *options])
            cfg = read_config(CONFIG, args.cfg_options, 'model', 'train_dataloader')
        except UserError as error:
            assert 0 < len(printable(str(error))) < 3000
            return
        except (SystemExit, argparse.ArgumentError):  # argparse's own: of words such as --data
            assert any(word.startswith('-') for word in options)
            return
        finally:
            assert not list(folder.iterdir())
        for key, value in args.cfg_options.items():
            node = cfg
            if '_delete_' in key.split('.'):  # mmengine's word for "in place of all that was there"
                continue
            for part in key.split('.'):
                node = node[int(part)] if isinstance(node, list | tuple) else node[part]
            assert isinstance(value, dict) or repr(node) == repr(value) or any(
                other.startswith(f'{key}.') or other == key for other in args.cfg_options)
