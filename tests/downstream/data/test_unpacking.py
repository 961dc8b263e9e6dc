"""Archives: what is unpacked, what is refused, and going on after a stop."""
import gzip
import io
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest
from memory import peak_growth

from downstream.data import unpacking
from downstream.data.unpacking import unpack
from downstream.errors import UserError

FILES = {'top/a/1.jpg': b'one', 'top/a/2.jpg': b'two' * 1000, 'other/3.jpg': b'three',
         '__MACOSX/top/a/._1.jpg': b'x'}


def make(path: Path, files: dict) -> Path:
    if path.suffix == '.zip':
        with zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED) as archive:
            archive.writestr('top/', b'')
            for name, content in files.items():
                archive.writestr(name, content)
    else:
        with tarfile.open(path, 'w:gz') as archive:
            for name, content in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return path


def found(folder: Path) -> dict:
    return {path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob('*') if path.is_file()}


@pytest.mark.parametrize('suffix', ['zip', 'tar.gz'])
def test_unpacking(tmp_path, suffix):
    archive = make(tmp_path / f'x.{suffix}', FILES)
    assert unpack(archive, tmp_path / 'all') == 3
    assert found(tmp_path / 'all') == {name: FILES[name] for name in list(FILES)[:3]}
    assert unpack(archive, tmp_path / 'part', strip='top') == 2
    assert found(tmp_path / 'part') == {'a/1.jpg': b'one', 'a/2.jpg': FILES['top/a/2.jpg']}
    unpack(archive, tmp_path / 'flat', strip='top', flat=True)
    assert sorted(found(tmp_path / 'flat')) == ['1.jpg', '2.jpg']


@pytest.mark.parametrize('suffix', ['zip', 'tar.gz'])
@pytest.mark.parametrize('name', ['../evil.jpg', 'top/../../evil.jpg', '/evil.jpg', 'c:/evil.jpg',
                                  'top\\..\\evil.jpg'])
def test_paths_that_lead_elsewhere(tmp_path, suffix, name):
    archive = make(tmp_path / f'x.{suffix}', {name: b'evil'})
    with pytest.raises(UserError, match='which would go outside of its folder'):
        unpack(archive, tmp_path / 'in' / 'out')
    assert not [path for path in tmp_path.rglob('*') if 'evil' in path.name]


def test_links(tmp_path):
    link = zipfile.ZipInfo('top/link')
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / 'x.zip', 'w') as archive:
        archive.writestr(link, '/etc')
        archive.writestr('top/link/passwd', b'x')
    info = tarfile.TarInfo('top/link')
    info.type, info.linkname = tarfile.SYMTYPE, '/etc'
    with tarfile.open(tmp_path / 'x.tar', 'w') as archive:
        archive.addfile(info)
    for name in 'x.zip', 'x.tar':
        with pytest.raises(UserError, match=f'{name} is not unpacked: it holds .top/link., which '
                                            'is a link or a device'):
            unpack(tmp_path / name, tmp_path / 'out')
    assert not found(tmp_path / 'out')


@pytest.mark.parametrize('suffix', ['zip', 'tar.gz'])
def test_bombs(tmp_path, suffix):
    archive = make(tmp_path / f'x.{suffix}', {f'{i}.jpg': bytes(1 << 19) for i in range(9)})
    assert archive.stat().st_size < 30_000
    with pytest.raises(UserError, match='over 100 times its own size: no archive of a data set'):
        unpack(archive, tmp_path / 'out')
    assert sum(map(len, found(tmp_path / 'out').values())) <= 1 << 21 if suffix != 'zip' else (
        not (tmp_path / 'out').exists())


def test_empty_files_are_bounded_too(tmp_path):
    """Ten million of them are a small .tar.gz, and all the inodes of a disk."""
    archive = make(tmp_path / 'x.tar.gz', {f'{i}.jpg': b'' for i in range(9000)})
    assert 100 * archive.stat().st_size < 9000 * 512
    with pytest.raises(UserError, match='over 100 times its own size: no archive of a data set'):
        unpack(archive, tmp_path / 'out')


def blocks(path: Path, *headers: tuple[tarfile.TarInfo, bytes]) -> Path:
    with gzip.open(path, 'wb', 1) as file:
        for info, content in headers:
            file.write(info.tobuf(tarfile.GNU_FORMAT))
            file.write(content + bytes(-len(content) % 512))
    return path


def entry(kind: bytes, size: int, name: str = '1.jpg') -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info


@pytest.mark.parametrize('kind', [b'L', b'K', b'x', b'g', b'X'])
def test_names_and_notes_of_gigabytes(tmp_path, kind):
    """tarfile reads them at once: 64 MB here, in less than 1."""
    archive = blocks(tmp_path / 'x.tar.gz', (entry(kind, 1 << 26), bytes(1 << 26)))
    with peak_growth() as grown, pytest.raises(UserError, match=(
            'x.tar.gz is not unpacked: it has a name, or a note on a file, of 67,108,864 bytes')):
        unpack(archive, tmp_path / 'out')
    assert grown() < 30 << 20


def test_names_that_are_long(tmp_path):
    """Longer than a plain header has room for: both ways of writing them."""
    name = '/'.join(['folder' * 10] * 5) + '/1.jpg'
    for form in tarfile.GNU_FORMAT, tarfile.PAX_FORMAT:
        with tarfile.open(tmp_path / 'x.tar', 'w', format=form) as archive:
            archive.addfile(entry(tarfile.REGTYPE, 3, name), io.BytesIO(b'one'))
        assert unpack(tmp_path / 'x.tar', tmp_path / f'out{form}') == 1
        assert found(tmp_path / f'out{form}') == {name: b'one'}


def test_files_with_holes(tmp_path):
    """Their lists of holes have no end but the archive's: old form, and the one in notes."""
    note = b''.join(b'%d GNU.sparse.%s\n' % (len(text) + 15, text) for text in (
        b'major=1', b'minor=0', b'realsize=1', b'name=a.jpg'))
    for headers in ([(entry(b'S', 512), bytes(512))],
                    [(entry(b'x', len(note)), note), (entry(b'0', 1 << 26), b'1' * (1 << 26))]):
        archive = blocks(tmp_path / 'x.tar.gz', *headers)
        with peak_growth() as grown, pytest.raises(UserError, match='a file with holes'):
            unpack(archive, tmp_path / 'out')
        assert grown() < 30 << 20


@pytest.mark.parametrize('suffix', ['zip', 'tar.gz'])
def test_files_without_a_name(tmp_path, suffix):
    archive = make(tmp_path / f'x.{suffix}', {'.': b'a'})
    with pytest.raises(UserError, match='it holds a file without a name'):
        unpack(archive, tmp_path / 'out')
    archive = make(tmp_path / f'x.{suffix}', {'top': b'a'})
    with pytest.raises(UserError, match="it holds 'top', which should be a folder"):
        unpack(archive, tmp_path / 'in' / 'out', strip='top')
    assert not [path for path in tmp_path.rglob('*') if path.suffix == '.part']


def test_damage(tmp_path):
    """A changed byte, an end that is missing, a web page: each is told, and nothing half stays."""
    whole = make(tmp_path / 'x.zip', {'1.jpg': b'one', '2.jpg': b'two' * 1000}).read_bytes()
    place = whole.index(b'2.jpg') + 10
    for content in (whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1:],
                    whole[:len(whole) // 2], b'<html>log in</html>', b''):
        (tmp_path / 'x.zip').write_bytes(content)
        with pytest.raises(UserError, match='is damaged, or not whole, or no archive'):
            unpack(tmp_path / 'x.zip', tmp_path / 'out')
        assert sorted(found(tmp_path / 'out')) in ([], ['1.jpg'])
    (tmp_path / 'x.tar.gz').write_bytes(b'\x1f\x8b\x08')  # on which tarfile raises a TypeError
    with pytest.raises(UserError, match='is damaged, or not whole, or no archive'):
        unpack(tmp_path / 'x.tar.gz', tmp_path / 'out')
    tar = make(tmp_path / 'x.tar.gz', {'2.jpg': bytes(range(256)) * 2000})
    tar.write_bytes(tar.read_bytes()[:-500])
    with pytest.raises(UserError, match='is damaged, or not whole, or no archive'):
        unpack(tar, tmp_path / 'out')


@pytest.mark.parametrize('suffix', ['zip', 'tar.gz'])
def test_goes_on_after_a_stop(tmp_path, suffix, monkeypatch):
    archive = make(tmp_path / f'x.{suffix}', {f'{i}.jpg': b'x' * 100 for i in range(5)})
    written = []

    def stopped(source, target, size, write=unpacking.write):
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(target.name)
        write(source, target, size)

    monkeypatch.setattr(unpacking, 'write', stopped)
    with pytest.raises(KeyboardInterrupt):
        unpack(archive, tmp_path / 'out')
    assert sorted(found(tmp_path / 'out')) == ['0.jpg', '1.jpg']
    monkeypatch.undo()
    seen = []

    def noted(source, target, size, write=unpacking.write):
        seen.append(target.name)
        write(source, target, size)

    monkeypatch.setattr(unpacking, 'write', noted)
    assert unpack(archive, tmp_path / 'out') == 5
    assert seen == ['2.jpg', '3.jpg', '4.jpg'] and len(found(tmp_path / 'out')) == 5


def test_stopped_in_the_middle_of_a_file(tmp_path):
    class Source(io.BytesIO):
        def read(self, size):
            if self.tell():
                raise KeyboardInterrupt
            return super().read(2)

    with pytest.raises(KeyboardInterrupt):
        unpacking.write(Source(b'abcd'), tmp_path / '1.jpg', 4)
    assert not list(tmp_path.iterdir())


def test_no_room(tmp_path, monkeypatch):
    archive = make(tmp_path / 'x.zip', FILES)
    monkeypatch.setattr('shutil.disk_usage', lambda _: type('', (), dict(free=100)))
    with pytest.raises(UserError, match='x.zip cannot be unpacked: .* are needed in .*free'):
        unpack(archive, tmp_path / 'out')
    assert not found(tmp_path / 'out')
