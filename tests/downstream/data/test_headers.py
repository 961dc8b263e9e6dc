"""Headers of images, read once."""
import numpy as np
import pytest
from PIL import Image

from downstream.data import headers as module
from downstream.data.headers import headers, shown_size


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
