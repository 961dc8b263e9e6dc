"""Commands, called in the process of a test."""
import importlib.util
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[1] / 'tools'


def command(name):
    """A command's module. (By its file: `test` is another module's name, too.)"""
    spec = importlib.util.spec_from_file_location(f'tools_{name}', TOOLS / f'{name}.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def refused(main, *argv):
    """The message that the tool ends with."""
    with pytest.raises(SystemExit) as stop:
        main([str(arg) for arg in argv])
    assert isinstance(stop.value.code, str)  # printed on stderr, with status 1
    assert stop.value.code.startswith('error: ')
    assert 'Traceback' not in stop.value.code
    return stop.value.code
