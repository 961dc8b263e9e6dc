"""Weights by name: found, fetched once, kept, and what a person is told when they cannot be had."""
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from mmengine.registry import MODELS

from backbones import weights
from backbones.pretrained import kind_of, read_weights
from backbones.weights import fetch_named, file_of, folder_of, known, released_for, weights_for

ROOT = Path(__file__).resolve().parents[2]
STATE = {'weight': torch.arange(1000.)}


@pytest.fixture
def server(server, tmp_path, monkeypatch):
    """One name, `mine`, with a dead place and one that has it; a second, which has to be placed."""
    torch.save(STATE, tmp_path / 'w.pth')
    server.files['/w.pth'] = (tmp_path / 'w.pth').read_bytes()
    entries = dict(mine=dict(sources=[f'{server.url}/gone.pth', f'{server.url}/w.pth']),
                   placed=dict(sources=[], by_hand='the attic'))
    monkeypatch.setattr(weights, 'known', lambda: entries)
    server.entries = entries
    monkeypatch.chdir(tmp_path)
    return server


def test_fetched_once(server):
    for _ in range(2):
        state, _ = read_weights('mine')
        assert state['weight'].equal(STATE['weight'])
    assert server.paths == ['/w.pth'] and file_of('mine') == folder_of('mine') / 'w.pth'
    Path('mine').write_bytes(server.files['/w.pth'][:10])  # a file of that name is that file
    with pytest.raises(ValueError, match='mine is no weight file'):
        read_weights('mine')


def test_goes_on_where_it_was_stopped(server):
    server.breaks = [1000, 0]
    with pytest.raises(ValueError, match='its first 1,000 bytes'):
        fetch_named('mine')
    assert fetch_named('mine').read_bytes() == server.files['/w.pth']
    assert server.ranges == [None, 'bytes=1000-', 'bytes=1000-']


def test_without_a_network(server, tmp_path):
    """The message says which file is to go where, and is right about it."""
    server.entries['mine'] |= dict(sources=['http://127.0.0.1:1/a.pth', 'http://127.0.0.1:1/b.pth'],
                                   size=len(server.files['/w.pth']))
    with pytest.raises(ValueError, match='refused') as stop:
        fetch_named('mine')
    said = str(stop.value).splitlines()
    assert said[said.index('Download one of these where you can:') + 1:][:2] == [
        '  http://127.0.0.1:1/a.pth', '  http://127.0.0.1:1/b.pth']
    folder = Path(said[-2].strip())
    (folder / 'any name.pth').write_bytes(b'half of it')
    with pytest.raises(ValueError, match='has 10 bytes, mine has [0-9,]+: it is another file'):
        fetch_named('mine')
    (tmp_path / 'w.pth').replace(folder / 'any name.pth')
    assert fetch_named('mine') == folder / 'any name.pth'
    with pytest.raises(ValueError, match='nowhere to be downloaded(.|\n)*  the attic\n'):
        fetch_named('placed')


def test_a_known_checksum(server):
    server.entries['mine']['sha256'] = '0123'
    with pytest.raises(ValueError, match='its SHA-256 begins with ...., not 0123'):
        fetch_named('mine')
    (folder_of('mine') / 'w.pth').write_bytes(server.files['/w.pth'])
    with pytest.raises(ValueError, match='its SHA-256 begins with ...., not 0123'):
        fetch_named('mine')


def test_a_file_that_was_changed(server):
    path = fetch_named('mine')
    path.write_bytes(path.read_bytes() + b'!')
    with pytest.raises(ValueError, match='is not the file that was put there(.|\n)*Delete both'):
        read_weights('mine')


def test_several_files(server):
    folder_of('placed').mkdir(parents=True)
    for name in 'a.pth', 'b.safetensors':
        (folder_of('placed') / name).write_bytes(b'x')
    with pytest.raises(ValueError, match='has a.pth and b.safetensors: leave the one'):
        fetch_named('placed')


def test_processes_that_ask_at_once(server, tmp_path):
    """One downloads, the others wait for it."""
    code = ('import sys; from backbones import weights; '
            f'weights.known = lambda: {server.entries!r}; '
            'print(weights.fetch_named("mine").stat().st_size)')
    asking = [subprocess.Popen([sys.executable, '-c', code], cwd=ROOT, text=True,
                               stdout=subprocess.PIPE) for _ in range(3)]
    assert {process.communicate()[0].split()[-1] for process in asking} == {
        str(len(server.files['/w.pth']))}
    assert server.paths == ['/w.pth']


def test_no_such_name():
    with pytest.raises(ValueError, match='no published weights have that name; did you mean '
                                         'focalnet_base_lrf, '):
        read_weights('focalnet_basic_lrf')
    with pytest.raises(ValueError, match='docs/weights.md lists the names'):
        read_weights('qqq')


def test_the_list():
    for name, entry in known().items():
        assert weights.NAME.fullmatch(name)
        assert entry.keys() <= {'backbone', 'config', 'start', 'sources', 'by_hand', 'size',
                                'sha256'}, name
        assert len(entry.keys() & {'backbone', 'config', 'start'}) == 1, name
        assert entry['sources'] or entry['by_hand'], name
        assert all(url.startswith('https://') for url in entry['sources']), name
        assert all(Path(url).suffix in weights.SUFFIXES for url in entry['sources']), name
    assert released_for('maskrcnn_focalnet_t_1x') == 'maskrcnn_focalnet_t_1x'
    assert released_for('detr_focalnet_t_50e') is None


@pytest.mark.parametrize('kind, name', [
    ('FocalNet-B lrf (first kernel 9)', 'focalnet_base_lrf'),
    ('FocalNet-L fl4 (first kernel 3)', 'focalnet_large_fl4'),
    ('LocalViT-T', 'localvit_t'), ('LocalViT-T-SE4', 'localvit_t_se4'),
    ('LocalViT on T2T-ViT, 256 channels', None), ('LocalViT on PVT, 640 channels', None),
    ('FocalNet (8 channels, 1 blocks in stage 3) fl3 (first kernel 9)', None)])
def test_a_backbones_weights(kind, name):
    assert weights_for(kind) == name


def test_a_backbone_that_was_built_is_recognised():
    with torch.device('meta'):
        model = MODELS.build(dict(type='FocalNet', focal_levels=(2, 2, 2, 2)))
    assert weights_for(kind_of(model.state_dict())) == 'focalnet_tiny_srf'
