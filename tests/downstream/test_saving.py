"""Files that are whole."""
import errno
import os
import stat

import numpy as np
import pytest
from mmengine.logging import MMLogger
from mmengine.registry import VISBACKENDS
from PIL import Image

from downstream.errors import UserError, user_message
from downstream.saving import in_units, whole_file, write_whole


def test_what_was_there_stays_until_the_new_is_whole(tmp_path):
    path = tmp_path / 'file'
    write_whole(path, b'old')
    with pytest.raises(KeyboardInterrupt), whole_file(path) as part:
        part.write_bytes(b'new')
        assert path.read_bytes() == b'old'
        raise KeyboardInterrupt
    assert path.read_bytes() == b'old' and os.listdir(tmp_path) == ['file']
    write_whole(path, 'neu: ü')
    assert path.read_text(encoding='utf-8') == 'neu: ü' and os.listdir(tmp_path) == ['file']


def test_a_full_disk_is_one_error(tmp_path):
    for number in (errno.ENOSPC, errno.EDQUOT):
        with pytest.raises(UserError, match='could not be written: the disk is full'), \
                whole_file(tmp_path / 'file') as part:
            part.write_bytes(b'ne')
            raise OSError(number, os.strerror(number))
        assert not os.listdir(tmp_path)
        assert 'the disk is full, where a/log is' in user_message(
            OSError(number, os.strerror(number), 'a/log'))
    assert user_message(OSError(errno.EIO, 'Input/output error')) is None


def test_links_and_devices_stay_what_they_are(tmp_path):
    target = tmp_path / 'target'
    link = tmp_path / 'link'
    target.write_text('old')
    link.symlink_to(target)
    write_whole(link, 'new')
    assert link.is_symlink() and target.read_text() == 'new'
    write_whole('/dev/null', 'nothing')
    assert stat.S_ISCHR(os.stat('/dev/null').st_mode)


def test_permissions_are_a_new_files(tmp_path):
    old = os.umask(0o027)
    try:
        write_whole(tmp_path / 'file', b'')
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / 'file').stat().st_mode) == 0o640


def test_in_units():
    assert [in_units(n) for n in (0, 1023, 1024, 1.5 * 2**20, 2**40)] == [
        '0 bytes', '1023 bytes', '1.0 KiB', '1.5 MiB', '1024.0 GiB']


def test_pictures_are_whole_or_an_error(tmp_path, monkeypatch):
    backend = VISBACKENDS.build(dict(type='LocalVisBackend', save_dir=str(tmp_path)))
    picture = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    backend.add_image('a', picture, 7)
    assert (np.asarray(Image.open(tmp_path / 'vis_image' / 'a_7.png')) == picture).all()

    def full(*_):
        raise OSError(errno.ENOSPC, 'No space left on device')

    monkeypatch.setattr('pathlib.Path.write_bytes', full)
    with pytest.raises(UserError, match='b_0.png could not be written'):
        backend.add_image('b', picture)


def test_a_log_that_cannot_be_written_is_told_once(tmp_path, capsys):
    logger = MMLogger('full', log_file=str(tmp_path / 'log.txt'))
    logger.handlers[1].stream.close()
    logger.handlers[1].stream = open('/dev/full', 'w')  # noqa: SIM115
    for line in 'one', 'two', 'three':
        logger.info(line)
    said = capsys.readouterr().err
    assert said.count('log.txt is not written any more: [Errno 28]') == 1
    assert 'Traceback' not in said
    logger.handlers[1].stream = open('/dev/null', 'w')  # noqa: SIM115  as it is flushed at the end
