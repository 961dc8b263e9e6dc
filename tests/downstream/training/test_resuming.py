"""What is resumed when the newest checkpoint is not whole, or not where it was."""
import os
import shutil
import time
from pathlib import Path

import pytest
import torch
from commands import command, in_epochs, refused, same_state
from mmengine.runner import find_latest_checkpoint

from downstream.training.resuming import damage, newest_whole

train = command('train').main


def checkpoint(path: Path, iteration=0, age=0):
    path.parent.mkdir(exist_ok=True)
    torch.save(dict(meta=dict(iter=iteration), state_dict=dict(weight=torch.arange(1000.)),
                    optimizer={}, message_hub={}), path)
    os.utime(path, (time.time() - age, ) * 2)
    return path


def cut(path: Path, share=0.5):
    path.write_bytes(path.read_bytes()[:int(share * path.stat().st_size)])


def flip(path: Path):
    """One bit of a tensor's values."""
    content = bytearray(path.read_bytes())
    content[content.index(torch.arange(1000.).numpy().tobytes()) + 2001] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize('harm, words', [
    (cut, 'is not whole'), (flip, 'is damaged'), (Path.unlink, 'is not there'),
    (lambda path: path.write_bytes(b''), 'is not whole')], ids=['cut', 'flipped', 'gone', 'empty'])
def test_the_newest_that_is_whole(tmp_path, harm, words):
    old, mid, new = (checkpoint(tmp_path / f'epoch_{n}.pth', n, age=10 - n) for n in (8, 9, 10))
    (tmp_path / 'last_checkpoint').write_text(str(new))
    assert newest_whole(tmp_path) == (new, [])
    harm(new)
    found, lost = newest_whole(tmp_path)
    assert found == mid and len(lost) == 1 and f'{new} {words}' in lost[0]
    cut(mid, 0.99)
    assert newest_whole(tmp_path)[0] == old
    old.unlink()
    assert newest_whole(tmp_path)[0] is None
    assert len(newest_whole(tmp_path)[1]) == (1 if words == 'is not there' else 2) + (
        words == 'is not there')


def test_which_files_are_looked_at(tmp_path):
    """Those with the state of a training: no best weights, nor what had lost its numbers."""
    run = tmp_path / 'run'
    for name in ('best_mIoU_epoch_3.pth', 'nonfinite.pth'):
        checkpoint(run / name)
    torch.save(dict(state_dict={}), run / 'weights.pth')
    found, lost = newest_whole(run)
    assert found is None and 'no state of a training run' in lost[0] and len(lost) == 1
    checkpoint(run / 'epoch_9.pth', age=99)
    (run / 'last_checkpoint').write_bytes(b'\xff\xfe')
    assert newest_whole(run)[0] == run / 'epoch_9.pth'
    # Moved, copied from another machine: the name counts, also before newer times of a copy.
    checkpoint(run / 'epoch_10.pth', age=99)
    os.utime(run / 'epoch_9.pth')
    (run / 'last_checkpoint').write_text('/another/machine/run/epoch_10.pth\n')
    assert newest_whole(run) == (run / 'epoch_10.pth', [])
    # A run whose checkpoints are elsewhere.
    elsewhere = checkpoint(tmp_path / 'elsewhere' / 'epoch_11.pth')
    (run / 'last_checkpoint').write_text(str(elsewhere))
    assert newest_whole(run) == (elsewhere, [])


def test_damage_anywhere(tmp_path):
    """Each single bit of the values, and each length, is noticed."""
    whole = checkpoint(tmp_path / 'a.pth').read_bytes()
    begin = whole.index(torch.arange(1000.).numpy().tobytes())
    file = tmp_path / 'b.pth'
    for place in range(begin, begin + 4000, 97):
        content = bytearray(whole)
        content[place] ^= 1 << place % 8
        file.write_bytes(content)
        assert damage(file)
    for length in range(0, len(whole), 97):
        file.write_bytes(whole[:length])
        assert damage(file)
    file.write_bytes(whole)
    assert not damage(file)


def test_going_on_from_the_one_before(segmentation, elsewhere, capfd):
    """The last checkpoint was cut off and the work dir was moved: the same state in the end."""
    config = in_epochs(segmentation)
    keep = '--cfg-options', 'default_hooks.checkpoint.max_keep_ckpts=2'
    train([str(config), '--work-dir', 'straight', *keep])
    shutil.copytree('straight', 'moved')
    cut(Path('moved/epoch_3.pth'))
    assert 'Try' not in refused(train, config, '--work-dir', 'moved', '--resume',
                                'moved/epoch_3.pth') and Path('moved/epoch_2.pth').exists()
    time.sleep(1.01 - time.time() % 1)
    capfd.readouterr()
    train([str(config), '--work-dir', 'moved', '--resume', *keep])
    said = ''.join(capfd.readouterr())
    assert 'moved/epoch_3.pth is not whole' in said
    assert 'going on from moved/epoch_2.pth' in said
    assert Path(find_latest_checkpoint('moved')).resolve() == Path('moved/epoch_3.pth').resolve()
    same_state('straight/epoch_3.pth', 'moved/epoch_3.pth')
    # The best one lay in the other place when it was written.
    assert len(list(Path('moved').glob('best_*'))) == 1


def test_a_named_one_that_is_not_whole(segmentation, elsewhere):
    checkpoint(Path('run/epoch_1.pth'))
    cut(checkpoint(Path('run/epoch_2.pth')))
    message = refused(train, segmentation, '--work-dir', 'run', '--resume', 'run/epoch_2.pth')
    assert 'run/epoch_2.pth is not whole; the newest whole one there is run/epoch_1.pth' in message


def test_nothing_to_resume(segmentation, elsewhere, capfd):
    """From scratch, with the weights that the config starts from."""
    cut(checkpoint(Path('run/epoch_2.pth')))
    Path('run/last_checkpoint').write_text('run/epoch_2.pth')
    train([str(segmentation), '--work-dir', 'first'])
    time.sleep(1.01 - time.time() % 1)
    capfd.readouterr()
    train([str(segmentation), '--work-dir', 'run', '--resume', '--cfg-options',
           'load_from=first/iter_2.pth'])
    said = ''.join(capfd.readouterr())
    assert 'no whole checkpoint in run, the run starts from scratch' in said
    assert 'Load checkpoint from first/iter_2.pth' in said
