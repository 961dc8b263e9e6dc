"""Weight files from a server of this machine, which breaks off connections when it is told to."""
import hashlib
import http.server
import io
import re
import sys
import threading

import pytest
import torch

from backbones.download import fetch
from backbones.pretrained import read_weights

STATE = {'weight': torch.arange(100_000.)}


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves files of a dict in parts; ``breaks`` holds after how many bytes, for each request."""

    def do_GET(self):
        content = self.server.files.get(self.path)
        if content is None:
            return self.send_error(404)
        asked = self.headers.get('Range')
        self.server.ranges.append(asked)
        start = int(asked.removeprefix('bytes=').removesuffix('-')) if asked else 0
        if start and not self.server.resumes:
            start = 0
        if start and start >= len(content):
            self.send_response(416)
            self.send_header('Content-Range', f'bytes */{len(content)}')
            self.send_header('Content-Length', '0')
            return self.end_headers()
        self.send_response(206 if start else 200)
        self.send_header('Content-Length', str(len(content) - start))
        self.end_headers()
        stop = start + self.server.breaks.pop(0) if self.server.breaks else None
        self.wfile.write(content[start:stop])

    def log_message(self, *args):
        pass


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv('TORCH_HOME', str(tmp_path / 'home'))
    torch.save(STATE, tmp_path / 'w.pth')
    with http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler) as server:
        server.files = {'/w.pth': (tmp_path / 'w.pth').read_bytes()}
        server.content = server.files['/w.pth']
        server.breaks, server.ranges, server.resumes = [], [], True
        server.url = f'http://127.0.0.1:{server.server_port}'
        thread = threading.Thread(target=server.serve_forever, args=(0.01, ), daemon=True)
        thread.start()
        yield server
        server.shutdown()


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
