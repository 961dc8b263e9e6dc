"""From archives on a server of this machine to a data set that is known to be whole."""
import io
import json
import zipfile

import numpy as np
import pytest
from commands import command, refused
from PIL import Image

from downstream.data import preparing, unpacking
from downstream.data.preparing import check, fault, parts_of, prepare, sources
from downstream.errors import UserError

main = command('prepare_data').main


def image(kind='JPEG', seed=0) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file := io.BytesIO(), kind)
    return file.getvalue()


def zipped(files: dict) -> bytes:
    with zipfile.ZipFile(content := io.BytesIO(), 'w') as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return content.getvalue()


@pytest.fixture
def coco(server, tmp_path, monkeypatch):
    """A COCO of three images with panoptic maps, in archives like the real ones."""
    monkeypatch.setenv('COCO_ROOT', str(tmp_path / 'coco'))
    monkeypatch.setattr(preparing.multiprocessing, 'cpu_count', lambda: 1)
    names = ['1.jpg', '2.jpg', '3.jpg']
    listed = json.dumps(dict(images=[dict(file_name=name) for name in names]))
    maps = zipped({'panoptic_val2017/': b''} | {f'panoptic_val2017/{i}.png': image('PNG', i)
                                                for i in (1, 2, 3)})
    server.files = {
        '/annotations.zip': zipped({'annotations/instances_val2017.json': listed}),
        '/val2017.zip': zipped({f'val2017/{name}': image(seed=i)
                                for i, name in enumerate(names)}),
        '/panoptic.zip': zipped({'annotations/panoptic_val2017.json': listed,
                                 'annotations/panoptic_val2017.zip': maps,
                                 '__MACOSX/annotations/._x': b'x'}),
    }
    url = server.url
    spec = dict(
        root=['COCO_ROOT', 'data/coco'],
        archives=[
            {'from': [f'{url}/annotations.zip'],
             'holds': {'annotations/instances_val2017.json': 1}},
            {'from': ['http://127.0.0.1:1/val2017.zip', f'{url}/val2017.zip'],
             'holds': {'val2017': 3}},
            {'from': [f'{url}/panoptic.zip'], 'inner': ['annotations/panoptic_val2017.zip'],
             'holds': {'annotations/panoptic_val2017': 3, 'annotations/panoptic_val2017.json': 1}}],
        splits=[dict(list='annotations/instances_val2017.json', images='val2017', count=3),
                dict(list='annotations/panoptic_val2017.json', images='val2017', count=3,
                     maps='annotations/panoptic_val2017')])
    monkeypatch.setattr(preparing, 'sources', lambda: dict(coco=spec))
    server.spec, server.root = spec, tmp_path / 'coco'
    return server


def test_from_nothing(coco, capsys):
    """The first of two places for the images is dead. A second call asks for nothing."""
    main(['coco'])
    said = capsys.readouterr().out
    assert 'is whole: 3 files in val2017, 3 files in annotations/panoptic_val2017' in said
    assert 'export' not in said  # the configs look there
    assert sorted(path.name for path in coco.root.rglob('*') if path.is_file()) == sorted([
        *(f'{i}.{suffix}' for i in (1, 2, 3) for suffix in ('jpg', 'png')),
        'instances_val2017.json', 'panoptic_val2017.json', 'annotations.zip.done',
        'val2017.zip.done', 'panoptic.zip.done'])
    assert len(coco.paths) == 3
    main(['coco'])
    main(['coco', '--check-only', '--full'])
    assert len(coco.paths) == 3


def test_another_folder(coco, tmp_path, capsys):
    main(['coco', '--root', str(tmp_path / 'there'), '--keep-archives'])
    assert f'export COCO_ROOT={tmp_path}/there' in capsys.readouterr().out
    assert (tmp_path / 'there/downloads/val2017.zip').read_bytes() == coco.files['/val2017.zip']


def test_a_connection_that_breaks_off(coco):
    size = len(coco.files['/annotations.zip'])
    coco.breaks = [size, 1000, 0]
    with pytest.raises(UserError, match='val2017.zip cannot be had:(.|\n)*its first 1,000 bytes'):
        prepare(coco.spec, coco.root)
    assert coco.ranges == [None, None, 'bytes=1000-']
    prepare(coco.spec, coco.root)
    assert coco.ranges[3] == 'bytes=1000-' and not list(coco.root.rglob('*.part'))


def test_a_server_that_always_begins_anew(coco):
    coco.resumes, coco.breaks = False, [len(coco.files['/annotations.zip']), 1000]
    prepare(coco.spec, coco.root)
    assert coco.ranges == [None, None, 'bytes=1000-', None]


def test_put_there_by_hand(coco):
    """Data without archives is whole as it is; without a network a person is told what to do."""
    prepare(coco.spec, coco.root)
    for path in (coco.root / 'downloads').iterdir():
        path.unlink()
    coco.paths.clear()
    prepare(coco.spec, coco.root)
    assert not coco.paths

    (coco.root / 'val2017/2.jpg').unlink()
    coco.spec['archives'][1]['from'] = ['http://127.0.0.1:1/val2017.zip']
    said = refused(main, 'coco')
    assert 'Download it where you can:\n  http://127.0.0.1:1/val2017.zip\nand put it there:' in said
    place = coco.root / 'downloads/val2017.zip'
    assert f'\n  {place}\n' in said
    place.write_bytes(coco.files['/val2017.zip'][:-1000])
    assert 'val2017.zip is damaged, or not whole' in refused(main, 'coco')
    place.write_bytes(coco.files['/val2017.zip'])
    main(['coco'])
    assert place.is_file()  # it is not ours


def test_a_tampered_archive(coco, monkeypatch):
    """What was downloaded and not yet unpacked is compared with what came."""
    monkeypatch.setattr(preparing, 'unpack', lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        prepare(coco.spec, coco.root)
    monkeypatch.undo()
    archive = coco.root / 'downloads/annotations.zip'
    archive.write_bytes(archive.read_bytes() + b'!')
    with pytest.raises(UserError, match='annotations.zip is not the file that was put there'):
        prepare(coco.spec, coco.root)


def test_stopped_while_unpacking(coco, monkeypatch):
    def stopped(source, target, size, write=unpacking.write):
        if target.name == '2.jpg':
            raise KeyboardInterrupt
        write(source, target, size)

    monkeypatch.setattr(unpacking, 'write', stopped)
    with pytest.raises(SystemExit) as stop:
        main(['coco'])
    assert stop.value.code == 130 and (coco.root / 'val2017/1.jpg').is_file()
    monkeypatch.undo()
    coco.paths.clear()
    prepare(coco.spec, coco.root)
    assert coco.paths == ['/panoptic.zip']


def test_too_small_a_disk_is_told_before(coco, monkeypatch):
    sizes = [len(content) for content in coco.files.values()]
    enough = sizes[0] + sizes[1] + 2 * sizes[2]
    monkeypatch.setattr('shutil.disk_usage', lambda _: type('', (), dict(free=enough - 1)))
    with pytest.raises(UserError, match='are free, for the archives and what is in them; --root'):
        prepare(coco.spec, coco.root)
    assert not coco.paths
    coco.breaks = [100, 0]
    monkeypatch.setattr('shutil.disk_usage', lambda _: type('', (), dict(free=enough)))
    with pytest.raises(UserError, match='its first 100 bytes'):
        prepare(coco.spec, coco.root)
    # what is there already takes no more
    monkeypatch.setattr('shutil.disk_usage', lambda _: type('', (), dict(free=enough - 101)))
    with pytest.raises(UserError, match='are free, for the archives'):
        prepare(coco.spec, coco.root)
    monkeypatch.setattr('shutil.disk_usage', lambda _: type('', (), dict(free=enough - 100)))
    prepare(coco.spec, coco.root)


def test_what_is_not_whole_is_named(coco):
    prepare(coco.spec, coco.root)
    images, maps = coco.root / 'val2017', coco.root / 'annotations/panoptic_val2017'
    assert check(coco.spec, coco.root) == []
    content = (images / '1.jpg').read_bytes()
    (images / '1.jpg').write_bytes(content[:-100])
    (images / '2.jpg').write_bytes(b'')
    (maps / '3.png').unlink()
    said = refused(main, 'coco', '--check-only')
    assert 'panoptic_val2017: 1 of 3 files are not there: 3.png' in said
    assert '2 files are truncated or no images:' in said and '1.jpg: ' in said and '2.jpg: ' in said
    listing = coco.root / 'annotations/instances_val2017.json'
    listing.write_text('{"images": [{"file_name": "1.jpg"}]}')
    assert 'instances_val2017.json: 1 images, not 3' in '\n'.join(check(coco.spec, coco.root))
    listing.write_text('{"images": [')
    assert f'{listing} is not in COCO\'s format, or not all of it' in check(coco.spec, coco.root)
    with pytest.raises(UserError, match='is not whole:(.|\n)*the same command fetches it again'):
        prepare(coco.spec, coco.root)


def test_full_decodes_all(tmp_path):
    """Damage in the middle is seen by decoding alone; what follows the end marker is no fault."""
    good, path = image('PNG'), tmp_path / 'x.png'
    path.write_bytes(good)
    assert fault(path) is fault(path, full=True) is None
    path.write_bytes(good[:300] + b'damage' + good[306:])
    assert fault(path) is None and fault(path, full=True)
    path.write_bytes(image() + b'trailing bytes')
    assert fault(path) is None
    path.write_bytes(image()[:-30])
    assert 'truncated' in fault(path)


def test_ade20k(server, tmp_path):
    """No list: images and maps are each other's. Its archive has a folder in front."""
    files = {f'{kind}/{split}/{i}.{suffix}': image(form, i)
             for split in ('training', 'validation') for i in (1, 2)
             for kind, suffix, form in (('images', 'jpg', 'JPEG'), ('annotations', 'png', 'PNG'))}
    server.files['/ADEChallengeData2016.zip'] = zipped(
        {f'ADEChallengeData2016/{name}': content for name, content in files.items()}
        | {'ADEChallengeData2016/sceneCategories.txt': b'x'})
    spec = sources()['ade20k']
    part, = spec['archives']
    part['from'] = [f'{server.url}/ADEChallengeData2016.zip']
    for split in spec['splits']:
        split['count'] = 2
    said = prepare(spec, tmp_path / 'ade')
    assert '2 files in images/training' in said and 'export ADE20K_ROOT=' in said
    assert all((tmp_path / 'ade' / name).read_bytes() == content
               for name, content in files.items())
    (tmp_path / 'ade/annotations/training/2.png').unlink()
    assert 'annotations/training: 1 of 2 files are not there: 2.png' in check(
        spec, tmp_path / 'ade')[0]


def test_objects365(server, tmp_path):
    """Lists under other names than the files have, patches of which some were fetched by hand."""
    import tarfile
    spec, root = sources()['objects365'], tmp_path / 'o365'
    lists = {'val': ['images/v1/patch0/a.jpg', 'images/v2/patch16/b.jpg',
                     'images/v2/patch16/objects365_v2_00908726.jpg'],  # was never published
             'train': ['images/v1/patch0/c.jpg', 'images/v1/patch1/d.jpg']}
    texts = {kind: json.dumps(dict(images=[dict(file_name=name) for name in names])).encode()
             for kind, names in lists.items()}

    def tar(files):
        with tarfile.open(fileobj=(content := io.BytesIO()), mode='w:gz') as archive:
            for name, data in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        return content.getvalue()

    server.files = {
        '/val.json': texts['val'],
        '/train.tar.gz': tar({'somewhere/zhiyuan_objv2_train.json': texts['train']}),
        '/v1/patch0.tar.gz': tar({'patch0/a.jpg': image()}),
        '/v2/patch16.tar.gz': tar({'patch16/b.jpg': image()}),
        '/t/patch1.tar.gz': tar({'patch1/d.jpg': image()})}
    places = ['val.json', 'train.tar.gz', 'v1/patch{n}.tar.gz', 'v2/patch{n}.tar.gz',
              't/patch{n}.tar.gz']
    for part, place, count in zip(spec['archives'], places, (1, 1, 1, 1, 2), strict=True):
        part.update({'from': [f'{server.url}/{place}'], 'count': count})
    spec['archives'][0]['as'] = 'zhiyuan_objv2_val.json'
    (root / 'train/patch0').mkdir(parents=True)
    (root / 'train/patch0/c.jpg').write_bytes(image())
    prepare(spec, root)
    assert sorted(server.paths) == sorted(server.files)
    assert check(spec, root) == []
    (root / 'val/patch16/b.jpg').unlink()
    assert '1 of 2 files are not there: patch16/b.jpg' in check(spec, root)[0]


def test_the_sources():
    """Each archive is named once, and says how to see that it is not needed."""
    known = sources()
    assert set(known) == {'coco', 'coco-panoptic', 'ade20k', 'objects365'}
    for spec in known.values():
        parts = list(parts_of(spec))
        assert len({part['as'] for part in parts}) == len(parts)
        for part in parts:
            assert 'holds' in part or 'covers' in part
            assert all(url.startswith('http') and '{' not in url for url in part['from'])
    assert len(list(parts_of(known['objects365']))) == 2 + 16 + 28 + 51
    assert [part['as'] for part in parts_of(known['coco-panoptic'])] == [
        'annotations_trainval2017.zip', 'val2017.zip', 'train2017.zip',
        'panoptic_annotations_trainval2017.zip']
