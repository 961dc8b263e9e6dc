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


def test_operations_without_a_deterministic_version():
    with pytest.raises(SystemExit) as stop, errors.one_message(''):
        raise RuntimeError(
            'nll_loss2d_forward_out_cuda_template does not have a deterministic implementation, '
            "but you set 'torch.use_deterministic_algorithms(True)'.")
    assert stop.value.code.startswith(
        'error: --deterministic: nll_loss2d_forward_out_cuda_template of torch has no')


def test_what_an_option_may_have_brought_about(monkeypatch):
    """In the first iteration it is one message, later a traceback: by then the option worked."""
    monkeypatch.setitem(errors.options, 'model.in_channels', 3)

    class Loop:
        _iter = 0

        def run_iter(self):
            raise RuntimeError('expected 3 channels\nbut got 4')

    for done, expected in ((0, 'with --cfg-options model.in_channels=3: RuntimeError: expected 3 '
                            'channels\n(DOWNSTREAM_TRACEBACK=1 in the environment shows where.)'),
                           (1, None)):
        loop = Loop()
        loop._iter = done
        with pytest.raises(RuntimeError) as error:
            loop.run_iter()
        assert errors.user_message(error.value) == expected
    loop._iter = 0
    monkeypatch.setenv('DOWNSTREAM_TRACEBACK', '1')
    with pytest.raises(RuntimeError) as error:
        loop.run_iter()
    assert errors.user_message(error.value) is None
