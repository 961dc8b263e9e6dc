"""A checkpoint is written whole, or what was there before is left."""
import errno
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import command, in_epochs, refused
from torch import nn, optim

from downstream import saving
from downstream.training import checkpointing
from downstream.training.checkpointing import size_of_checkpoint

train = command('train').main


def test_a_full_disk(segmentation, elsewhere, monkeypatch):
    """While the second is written, of which only one is kept: the first is as it was."""
    config, write = in_epochs(segmentation), Path.write_bytes

    def fill(path, content):
        if '.epoch_2.pth' in path.name:
            write(path, content[:1000])
            raise OSError(errno.ENOSPC, 'No space left on device')
        return write(path, content)

    monkeypatch.setattr(Path, 'write_bytes', fill)
    message = refused(train, config, '--work-dir', 'run')
    assert 'epoch_2.pth could not be written: it takes ' in message
    assert 'MiB are free there' in message or 'GiB are free there' in message
    assert 'with --resume goes on' in message or 'What was there before is as it was' in message
    assert [path.name for path in Path('run').glob('*epoch*.pth*')
            if not path.name.startswith('best')] == ['epoch_1.pth']
    assert not list(Path('run').glob('.*.part'))
    assert Path(Path('run/last_checkpoint').read_text()).name == 'epoch_1.pth'


def test_no_room_from_the_start(segmentation, elsewhere, monkeypatch, capfd):
    left = [1000]
    monkeypatch.setattr(checkpointing.shutil, 'disk_usage',
                        lambda _: SimpleNamespace(free=left[0]))
    message = refused(train, segmentation, '--work-dir', 'run')
    assert 'a checkpoint takes about ' in message and '1000 bytes are free in' in message
    left[0] = 3 * 10**6
    train([str(segmentation), '--work-dir', 'run'])
    assert 'the checkpoints will take about' in ''.join(capfd.readouterr())
    size = Path('run/iter_2.pth').stat().st_size
    assert left[0] / 3 < size < left[0]


@pytest.mark.parametrize('kind, moments', [(optim.SGD, 1), (optim.AdamW, 2)])
def test_the_estimate(kind, moments):
    model = nn.Sequential(nn.Linear(10, 10), nn.BatchNorm1d(10))
    model[0].bias.requires_grad_(False)
    runner = SimpleNamespace(model=model, hooks=[], optim_wrapper=SimpleNamespace(
        optimizer=kind(model.parameters(), lr=1.)))
    assert size_of_checkpoint(runner) == 4 * (110 + 40) + 8 + moments * 4 * (100 + 20)


def test_parts_of_a_killed_process_are_removed(segmentation, elsewhere):
    Path('run').mkdir()
    Path('run/.iter_2.pth.4711.part').write_bytes(b'half')
    train([str(segmentation), '--work-dir', 'run'])
    assert not list(Path('run').glob('.*.part'))


def test_a_best_checkpoint_under_its_own_name_stays(segmentation, elsewhere, monkeypatch):
    """Scored again after a resume, the best one is replaced by a file of the same name."""
    config = in_epochs(segmentation)
    train([str(config), '--work-dir', 'run', '--epochs', '1'])
    best, = Path('run').glob('best_*')
    Path('run/.validated').unlink()  # as if it had been stopped before
    monkeypatch.setattr('mmengine.hooks.CheckpointHook.rule_map', {
        'greater': lambda x, y: x >= y, 'less': lambda x, y: x <= y})
    train([str(config), '--work-dir', 'run', '--epochs', '1', '--resume'])
    assert best.exists()


def test_saving_is_for_all_that_mmengine_writes(tmp_path):
    from mmengine.fileio import dump, get_file_backend, put_text
    assert type(get_file_backend(str(tmp_path))) is saving.WholeFiles
    dump(dict(a=1), tmp_path / 'folder' / 'a.json')
    put_text('text', tmp_path / 'b.txt')
    assert (tmp_path / 'folder' / 'a.json').read_text() == '{"a": 1}'
    assert (tmp_path / 'b.txt').read_text() == 'text'
