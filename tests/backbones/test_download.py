"""Weight files from a server of this machine, which breaks off connections when it is told to."""
import hashlib
import io
import re
import sys

import pytest
import torch

from backbones import download
from backbones.download import fetch
from backbones.pretrained import read_weights

STATE = {'weight': torch.arange(100_000.)}


@pytest.fixture
def server(server, tmp_path):
    torch.save(STATE, tmp_path / 'w.pth')
    server.content = server.files['/w.pth'] = (tmp_path / 'w.pth').read_bytes()
    return server


def test_downloads_once(server):
    for _ in range(2):
        state, _ = read_weights(f'{server.url}/w.pth')
        assert state['weight'].equal(STATE['weight'])
    assert server.ranges == [None]


@pytest.mark.parametrize('resumes', [True, False])
def test_goes_on_where_the_connection_broke_off(server, resumes):
    server.breaks, server.resumes = [100_000, 150_000], resumes
    path = fetch(f'{server.url}/w.pth')
    assert path.read_bytes() == server.content
    assert server.ranges == [None, 'bytes=100000-', 'bytes=250000-' if resumes
                             else 'bytes=150000-']


def test_the_next_call_goes_on(server):
    server.breaks = [100_000, 0]
    with pytest.raises(ValueError, match=r'w.pth cannot be downloaded: .*w.pth.part has its first '
                                         '100,000 bytes, and the same command goes on'):
        fetch(f'{server.url}/w.pth')
    path = fetch(f'{server.url}/w.pth')
    assert path.read_bytes() == server.content
    assert server.ranges == [None, 'bytes=100000-', 'bytes=100000-']
    assert [p.name for p in path.parent.iterdir()] == ['w.pth']


def test_stopped_between_download_and_renaming(server):
    path = fetch(f'{server.url}/w.pth')
    part = path.rename(f'{path}.part')
    assert fetch(f'{server.url}/w.pth') == path and path.read_bytes() == server.content
    path.unlink()
    part.write_bytes(server.content + b'of another file')
    assert fetch(f'{server.url}/w.pth').read_bytes() == server.content


def test_checksums(server):
    digest = hashlib.sha256(server.content).hexdigest()
    server.files.update({f'/good-{digest[:8]}.pth': server.content, '/bad-01234567.pth': b'x',
                         '/model-20260131.pth': server.content})
    fetch(f'{server.url}/good-{digest[:8]}.pth')
    fetch(f'{server.url}/model-20260131.pth')  # a date
    fetch(f'{server.url}/w.pth#sha256={digest}')
    wrong = r'is not the file that was expected: its SHA-256 begins with {}\w*, not 01234567'
    with pytest.raises(ValueError, match=wrong.format(hashlib.sha256(b'x').hexdigest()[:8])):
        fetch(f'{server.url}/bad-01234567.pth')
    with pytest.raises(ValueError, match=wrong.format(digest[:8])):  # also when it is cached
        fetch(f'{server.url}/w.pth#sha256=01234567')
    with pytest.raises(ValueError, match='#sha256='):
        fetch(f'{server.url}/w.pth#md5=0123')
    assert fetch(f'{server.url}/w.pth').read_bytes() == server.content  # deleted, and had again


def test_files_of_the_same_name(server):
    server.files.update({'/a/model.pth': b'a', '/b/model.pth?download=true': b'b'})
    assert fetch(f'{server.url}/a/model.pth').read_bytes() == b'a'
    path = fetch(f'{server.url}/b/model.pth?download=true')
    assert path.read_bytes() == b'b' and path.name == 'model.pth'


def test_not_there(server):
    with pytest.raises(ValueError, match='gone.pth cannot be downloaded: HTTP Error 404'):
        fetch(f'{server.url}/gone.pth')
    with pytest.raises(ValueError, match=r'cannot be downloaded: .*refused'):
        fetch('http://127.0.0.1:1/w.pth')


def test_no_place_for_it(server, tmp_path, monkeypatch):
    (tmp_path / 'file').touch()
    monkeypatch.setenv('TORCH_HOME', str(tmp_path / 'file'))
    with pytest.raises(ValueError, match='is downloaded to .TORCH_HOME, but .*file'):
        fetch(f'{server.url}/w.pth')


def test_several_places(server, tmp_path):
    """Dead ones, a web page and a file of the wrong size are passed over; what came is told."""
    server.files |= {'/page.pth': b'<html>please log in</html>', '/short/w.pth': b'x'}
    sources = [f'{server.url}/gone.pth', 'http://127.0.0.1:1/w.pth', f'{server.url}/page.pth',
               f'{server.url}/short/w.pth', f'{server.url}/w.pth']
    size = len(server.content)
    path = download.get_any(sources, tmp_path, size=size)
    assert path.read_bytes() == server.content
    download.check_noted(path)
    with pytest.raises(ValueError) as stop:
        download.get_any(sources[:4], tmp_path / 'other', size=size)
    lines = str(stop.value).splitlines()
    assert len(lines) == 4 and '404' in lines[0] and 'refused' in lines[1]
    assert 'answers with a web page in place of the file' in lines[2]
    assert f'it should have {size:,} bytes, the server offers 1: another file' in lines[3]


def test_a_part_is_gone_on_with_at_its_own_place(server, tmp_path):
    """Two servers have files of one name that may differ."""
    server.files['/first/w.pth'] = b'y' * 300_000
    server.breaks = [100_000, 0, 200_000, 0]
    sources = [f'{server.url}/first/w.pth', f'{server.url}/w.pth']
    with pytest.raises(ValueError, match='its first 100,000 bytes(.|\n)*its first 200,000 bytes'):
        download.get_any(sources, tmp_path / 'kept')
    path = download.get_any(sources[1:], tmp_path / 'kept')
    assert path.read_bytes() == server.content and server.ranges[-1] == 'bytes=200000-'
    assert sorted(p.name for p in path.parent.iterdir()) == ['w.pth', 'w.pth.sha256']


def test_a_file_that_was_changed(server, tmp_path):
    path = download.get_any([f'{server.url}/w.pth'], tmp_path / 'kept')
    path.write_bytes(path.read_bytes()[:-1] + b'!')
    with pytest.raises(ValueError, match='w.pth is not the file that was put there'):
        download.check_noted(path)


def test_no_room_for_it(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download.shutil, 'disk_usage', lambda _: download.shutil._ntuple_diskusage(
        100, 50, 50))
    with pytest.raises(ValueError, match=r'w.pth cannot be downloaded: 0.0 GiB are needed in .*, '
                                         'and 0.0 GiB are free'):
        fetch(f'{server.url}/w.pth')
    assert not list(tmp_path.glob('home/**/*.part'))


def test_the_size_is_asked(server):
    assert download.size_of(f'{server.url}/w.pth') == len(server.content)
    assert download.size_of(f'{server.url}/gone.pth') is None


def test_the_line_on_a_terminal(server, monkeypatch):
    """Size, speed and time left; nothing elsewhere."""
    drawn = io.StringIO()
    monkeypatch.setattr(sys, 'stdout', drawn)
    fetch(f'{server.url}/w.pth')
    assert '%' not in drawn.getvalue() and '\x1b' not in drawn.getvalue()
    server.files['/large.pth'] = bytes(3 << 20)
    server.breaks = [1 << 20]
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, 'stdout', terminal)
    monkeypatch.setattr('rich._console', None)  # it has looked at another stdout
    monkeypatch.setenv('TERM', 'xterm')
    monkeypatch.setenv('COLUMNS', '100')
    fetch(f'{server.url}/large.pth')
    last = terminal.getvalue().split('large.pth ')[-1]
    assert re.search(r'3\.1/3\.1.*MB', last) and 'eta' in last


@pytest.mark.parametrize('bytes, line', [(True, 'w.pth: 2 of 8 MiB, '),
                                         (False, 'w.pth: 2,097,152')])
def test_progress_without_a_terminal(capsys, monkeypatch, bytes, line):
    monkeypatch.setattr(download, 'PLAIN', 0)
    with download.Meter('w.pth', 8 << 20, bytes) as meter:
        meter.to(1 << 20)
        capsys.readouterr()
        meter.to(2 << 20)
    said, = capsys.readouterr().err.splitlines()
    assert said.startswith(line)
