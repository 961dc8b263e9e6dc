"""Stopped by a signal at any moment, a run is saved, ends, and goes on as if nothing had been."""
import os
import signal
import time
from pathlib import Path

import pytest
from commands import command, in_epochs, same_state
from mmengine.evaluator import Evaluator
from mmengine.runner import find_latest_checkpoint

from downstream.training.nonfinite import SkipNonFinite
from downstream.training.seeds import SameDraws
from downstream.training.stopping import Stopping

train = command('train').main


@pytest.fixture(autouse=True)
def on_one_thread(elsewhere, monkeypatch):
    monkeypatch.setattr('yapf.yapflib.yapf_api.FormatCode', lambda text, **_: (text, True))


def run(config, *argv):
    time.sleep(1.01 - time.time() % 1)  # mmengine names runs by the second
    train([str(config), *map(str, argv)])


def sent(monkeypatch, number, where, method, when=lambda runner: True):
    """Let a signal come, once, just before a method of a hook is called."""
    before = getattr(where, method)

    def call(self, runner, *args, **kwargs):
        if when(runner) and not came:
            came.append(number)
            os.kill(os.getpid(), number)
        return before(self, runner, *args, **kwargs)

    came = []
    monkeypatch.setattr(where, method, call)


@pytest.fixture(scope='module')
def once(tmp_path_factory):
    """Where the run that nothing stops is kept: the images are the same in each test."""
    return tmp_path_factory.mktemp('once') / 'straight'


@pytest.fixture
def straight(segmentation, once):
    config = in_epochs(segmentation)
    if not once.exists():
        run(config, '--work-dir', once)
    Path('straight').symlink_to(once)
    return config


@pytest.mark.parametrize('number, status, iteration', [
    (signal.SIGTERM, 75, 2),  # the first of the second epoch
    (signal.SIGUSR1, 75, 3),  # its last
    (signal.SIGINT, 130, 0)])
def test_between_two_checkpoints(straight, monkeypatch, number, status, iteration):
    with monkeypatch.context() as patch:
        sent(patch, number, SameDraws, 'after_train_iter', lambda run: run.iter == iteration)
        with pytest.raises(SystemExit) as stop:
            run(straight, '--work-dir', 'stopped')
    assert stop.value.code == status
    # After an epoch's last iteration there is the ordinary checkpoint.
    assert Path('stopped/interrupted.pth').exists() == (iteration != 3)
    run(straight, '--work-dir', 'stopped', '--resume')
    assert not Path('stopped/interrupted.pth').exists()
    same_state(*map(find_latest_checkpoint, ('straight', 'stopped')))
    assert scores('stopped') == scores('straight')
    assert sorted(path.name for path in Path('stopped').glob('*.pth')) == (
        sorted(path.name for path in Path('straight').glob('*.pth')))


def scores(work_dir):
    """Each validation's mIoU, the repeated ones once."""
    lines = ' '.join(log.read_text() for log in sorted(Path(work_dir).glob('*/*.log')))
    return sorted({line.partition('Epoch(val) ')[2].partition('  data_time')[0]
                   for line in lines.splitlines() if 'mIoU: ' in line and 'Epoch(val)' in line})


@pytest.mark.parametrize('where', ['images', 'scoring'])
def test_in_a_validation(straight, monkeypatch, where):
    """It ends at once, and what was not scored is, before the training goes on."""
    with monkeypatch.context() as patch:
        if where == 'images':
            sent(patch, signal.SIGTERM, SkipNonFinite, 'before_val_iter',
                 lambda runner: runner.iter == 4)
        else:
            sent(patch, signal.SIGTERM, Evaluator, 'evaluate', lambda _: Path(
                'stopped/epoch_2.pth').exists())
        with pytest.raises(SystemExit) as stop:
            run(straight, '--work-dir', 'stopped')
    assert stop.value.code == 75
    assert Path('stopped/.validated').read_text().split() == ['2']
    run(straight, '--work-dir', 'stopped', '--resume')
    assert Path('stopped/.validated').read_text().split() == ['2', '4', '6']
    same_state(*map(find_latest_checkpoint, ('straight', 'stopped')))
    assert scores('stopped') == scores('straight')


def test_gradients_of_several_iterations_belong_together(segmentation, monkeypatch):
    options = ('--cfg-options', 'optim_wrapper.accumulative_counts=3', 'train_cfg.max_iters=6',
               'default_hooks.checkpoint.interval=6')
    run(segmentation, '--work-dir', 'straight', *options)
    with monkeypatch.context() as patch:
        sent(patch, signal.SIGTERM, SameDraws, 'after_train_iter', lambda run: run.iter == 0)
        with pytest.raises(SystemExit):
            run(segmentation, '--work-dir', 'stopped', *options)
    assert Path(Path('stopped/last_checkpoint').read_text()).name == 'interrupted.pth'
    run(segmentation, '--work-dir', 'stopped', '--resume', *options)
    same_state(*map(find_latest_checkpoint, ('straight', 'stopped')))


def test_before_and_after_a_training():
    """Nothing is lost then: a process ends at once, or is ended as ever."""
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with Stopping().listening():
        with pytest.raises(SystemExit) as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)
        assert stop.value.code == 75
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


@pytest.mark.parametrize('number, left', [(signal.SIGTERM, 75), (signal.SIGINT, None)])
def test_whatever_a_library_makes_of_it(number, left):
    """mmengine's formatting of a config takes any exception for an error of the config's."""
    with pytest.raises((SystemExit, KeyboardInterrupt)) as stop, Stopping().listening():
        try:
            os.kill(os.getpid(), number)
            time.sleep(1)
        except:  # noqa: E722
            raise SyntaxError('another') from None
    assert getattr(stop.value, 'code', None) == left


def test_a_second_interrupt_is_at_once():
    stopping = Stopping()
    with stopping.listening():
        stopping.before_train_iter(None, 0)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        assert stopping.asked == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)


def test_children_do_not_listen():
    """A data loader ends its workers by SIGTERM; a terminal sends SIGINT to all of them."""
    with Stopping().listening():
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)
        os.kill(child, signal.SIGINT)
        time.sleep(0.3)
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
        os.kill(child, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) in (128 + signal.SIGTERM,
                                                                      -signal.SIGTERM)
