"""What a person can put right is one message, all else a traceback."""
import pytest
from mmengine.registry import MODELS

from downstream import errors


def test_backbones_speak_for_themselves():
    """A ValueError of a backbone's constructor is shown alone; one from elsewhere is a bug."""
    source = ('class Picky:\n    def __init__(self):\n'
              '        raise ValueError("focal_levels: 3 numbers for 4 stages")\n')
    for module, message in [('backbones.picky', 'focal_levels: 3 numbers for 4 stages'),
                            ('elsewhere', None)]:
        namespace = {'__name__': module}
        exec(source, namespace)
        with pytest.raises(ValueError) as error:
            MODELS.build(dict(type=namespace['Picky']))
        assert errors.user_message(error.value) == message


def test_interrupt(capsys):
    with pytest.raises(SystemExit) as stop, errors.one_message('go on with --resume'):
        raise KeyboardInterrupt
    assert stop.value.code == 130
    assert capsys.readouterr().err == 'interrupted: go on with --resume\n'


def test_bugs_keep_their_traceback():
    with pytest.raises(ZeroDivisionError), errors.one_message(''):
        1 / 0  # noqa: B018
