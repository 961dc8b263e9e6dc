"""Headers of images: read once; those of a few bytes that claim gigabytes are said, not decoded."""
import json
import re
import struct
import zlib

import numpy as np
import pytest
from memory import peak_growth
from mmengine.registry import TRANSFORMS
from PIL import Image

from downstream.data import headers as module
from downstream.data import label_maps, panoptic, segments
from downstream.data.coco import CocoCheck, read_coco
from downstream.data.headers import BOMB, header, headers, shown_size
from downstream.data.loading import LoadImage, LoadLabels
from downstream.errors import UserError


@pytest.fixture
def images(tmp_path, monkeypatch):
    monkeypatch.setenv('DOWNSTREAM_CACHE', str(tmp_path / 'cache'))
    paths = []
    for number in range(450):  # several parts
        paths.append(tmp_path / f'{number}.png')
        exif = Image.Exif()
        if number == 7:
            exif[0x0112] = 6
        Image.fromarray(np.zeros((3, 4 + number), np.uint8)).save(paths[-1], exif=exif)
    return paths


def test_in_their_order_and_once(images, monkeypatch):
    wanted = [((4 + number, 3), 6 if number == 7 else 1) for number in range(450)]
    assert headers(images) == wanted and shown_size(wanted[7]) == (3, 11)
    monkeypatch.setattr(module, 'header', lambda path: pytest.fail(f'{path} was opened'))
    assert headers(images) == wanted and headers([]) == []


def test_a_broken_image_that_is_put_right(images):
    good = images[3].read_bytes()
    images[3].write_bytes(b'nothing')
    found = headers(images)
    assert found[3] == 'UnidentifiedImageError' and found[4] == ((8, 3), 1)
    images[3].write_bytes(good)
    assert headers(images)[3] == ((7, 3), 1)


# -- bombs -------------------------------------------------------------------------------------

BOUND = 100 << 20  # bytes


def png(width: int, height: int, colour: int, rows: int = 0) -> bytes:
    """A PNG whose header claims a size; so many rows of zeros are there, packed."""
    def chunk(kind: bytes, content: bytes) -> bytes:
        return (struct.pack('>I', len(content)) + kind + content
                + struct.pack('>I', zlib.crc32(kind + content)))

    row = bytes(1 + width * {0: 1, 2: 3}[colour])
    return (b'\x89PNG\r\n\x1a\n'
            + chunk(b'IHDR', struct.pack('>IIBBBBB', width, height, 8, colour, 0, 0, 0))
            + chunk(b'IDAT', zlib.compress(row * rows)) + chunk(b'IEND', b''))


# The second is one that OpenCV takes: 0.9 gigapixels, 2.7 GB.
SIZES = (60000, 60000), (30000, 30000), (1 << 21, 100), (2**31 - 1, 2**31 - 1)


@pytest.mark.parametrize('size', SIZES, ids=str)
@pytest.mark.parametrize('colour', [0, 2])
def test_loaders(tmp_path, size, colour):
    path = tmp_path / 'bomb.png'
    path.write_bytes(png(*size, colour, rows=10 if size[0] <= 60000 else 0))
    labels = dict(img_path='a.jpg', ori_shape=size[::-1], seg_map_path=str(path),
                  reduce_zero_label=False, seg_fields=[])
    maps = TRANSFORMS.build(dict(type='LoadPanoptic'))
    with peak_growth() as grown:
        for load, results in ((LoadImage(), dict(img_path=str(path))),
                              (LoadLabels(values={0: 0}), labels),
                              (maps, dict(img_path='a.jpg', seg_map_path=str(path),
                                          ori_shape=size[::-1], segments_info=[]))):
            with pytest.raises(UserError, match='bomb.png cannot be loaded: ') as error:
                load(results)
            assert len(str(error.value)) < 500
        assert isinstance(header(path), str)
        assert isinstance(label_maps.values_of((str(path), str(path))), str)
        assert segments.segments_in((str(path), )) == 'panoptic maps cannot be read'
    assert grown() < BOUND


def test_says_why(tmp_path):
    path = tmp_path / 'bomb.png'
    path.write_bytes(png(30000, 30000, 2))
    with pytest.raises(UserError, match=BOMB):
        LoadImage()(dict(img_path=str(path)))
    with pytest.raises(OSError, match=BOMB):
        panoptic.read_ids(path.read_bytes())


def test_checks(tmp_path):
    """tools/check_data.py and --data."""
    (tmp_path / 'bomb.png').write_bytes(png(60000, 60000, 2))
    file = tmp_path / 'train.json'
    file.write_text(json.dumps(dict(
        images=[dict(id=1, file_name='bomb.png', width=60000, height=60000)],
        annotations=[dict(id=1, image_id=1, category_id=1, bbox=[0, 0, 60000, 60000])],
        categories=[dict(id=1, name='a')])))
    with peak_growth() as grown:
        found, = (f for f in CocoCheck(read_coco(file), file, tmp_path).findings if f.error)
    assert BOMB in str(found) and 'bomb.png' in str(found)
    assert grown() < BOUND


@pytest.mark.parametrize('value', [-1, 256, 1e6, 0.5, np.nan, np.inf])
def test_label_maps_of_numbers_that_are_no_bytes(tmp_path, value):
    """mmseg would train on their low byte, which for -1 is 255: unlabelled."""
    path = tmp_path / 'labels.tif'
    numbers = np.ones((4, 4), np.int32 if value in (-1, 256) else np.float32)
    transform = LoadLabels(values={0: 0, 1: 1, 255: 255})

    def load():
        Image.fromarray(numbers).save(path)
        return transform(dict(img_path='a.jpg', ori_shape=(4, 4), seg_map_path=str(path),
                              reduce_zero_label=False, seg_fields=[]))['gt_seg_map']

    assert (load() == 1).all()
    numbers[2, 2] = value
    with pytest.raises(UserError, match=re.escape(
            f'labels.tif has the value {value:g}: values are whole')):
        load()
