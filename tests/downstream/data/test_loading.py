"""LoadImage and LoadLabels stop at broken files and name them."""
import io
import pickle

import mmcv
import numpy as np
import pytest
from mmengine.registry import TRANSFORMS
from PIL import Image
from torch.utils.data import DataLoader

from downstream.data.loading import LoadImage, LoadLabels
from downstream.errors import UserError, user_message


def encoded(kind, shape=(48, 64, 3)):
    buffer = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 255, shape, dtype=np.uint8)
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def load(path, **kwargs):
    return LoadImage(**kwargs)(dict(img_path=str(path)))


@pytest.mark.parametrize('kind', ['JPEG', 'PNG'])
def test_same_as_mmcv(tmp_path, kind):
    path = tmp_path / 'image'
    path.write_bytes(encoded(kind))
    upstream = mmcv.transforms.LoadImageFromFile(to_float32=True)(dict(img_path=str(path)))
    ours = load(path, to_float32=True)
    assert ours.keys() == upstream.keys()
    assert ours['img'].dtype == np.float32 and (ours['img'] == upstream['img']).all()
    assert ours['img_shape'] == ours['ori_shape'] == (48, 64)


@pytest.mark.parametrize('kind', ['JPEG', 'PNG'])
@pytest.mark.parametrize('kept', [0.9, 0.5, 0.1, 0.])
def test_truncated(tmp_path, kind, kept):
    path = tmp_path / 'half.img'
    content = encoded(kind)
    path.write_bytes(content[:int(kept * len(content))])
    with pytest.raises(UserError, match='half.img') as error:
        load(path)
    assert '--resume' in str(error.value)
    assert load(path, ignore_empty=True) is None


def test_truncated_jpeg_that_opencv_fills_with_grey(tmp_path, monkeypatch):
    """As OpenCV versions do that return what they have decoded."""
    path = tmp_path / 'half.jpg'
    path.write_bytes(encoded('JPEG')[:-300] + bytes(100))
    monkeypatch.setattr(mmcv, 'imfrombytes', lambda *a, **k: np.full((48, 64, 3), 128, np.uint8))
    with pytest.raises(UserError, match='half.jpg'):
        load(path)


@pytest.mark.parametrize('junk', [bytes(100), b'behind the end marker'])
def test_complete_jpeg_with_more_behind(tmp_path, junk):
    path = tmp_path / 'image.jpg'
    path.write_bytes(encoded('JPEG') + junk)
    assert load(path)['img'].shape == (48, 64, 3)


def test_missing(tmp_path):
    with pytest.raises(UserError, match='nothing.jpg'):
        load(tmp_path / 'nothing.jpg')


def test_not_an_image(tmp_path):
    (tmp_path / 'text.jpg').write_text('404 not found')
    with pytest.raises(UserError, match='text.jpg'):
        load(tmp_path / 'text.jpg')


def test_registered():
    assert TRANSFORMS.get('LoadImageFromFile') is LoadImage
    assert TRANSFORMS.get('LoadLabels') is LoadLabels


def labels(path):
    return LoadLabels()(dict(img_path='image.jpg', ori_shape=(4, 4), seg_map_path=str(path),
                             reduce_zero_label=True, seg_fields=[]))


def test_labels(tmp_path):
    path = tmp_path / 'labels.png'
    Image.fromarray(np.full((4, 4), 3, np.uint8)).save(path)
    assert (labels(path)['gt_seg_map'] == 2).all()


@pytest.mark.parametrize('kept', [0.9, 0.5, 0.])
def test_truncated_labels(tmp_path, kept):
    path = tmp_path / 'labels.png'
    content = encoded('PNG', (48, 64))
    path.write_bytes(content[:int(kept * len(content))])
    with pytest.raises(UserError, match='labels.png'):
        labels(path)


@pytest.mark.parametrize('value', [256, 65535])
def test_labels_of_two_bytes(tmp_path, value):
    """mmseg keeps the low byte: 256 would be 0, the first class."""
    path = tmp_path / 'labels.png'
    transform = LoadLabels(values={0: 0, 1: 1, 255: 255})
    said = dict(img_path='image.jpg', ori_shape=(4, 4), seg_map_path=str(path),
                reduce_zero_label=False, seg_fields=[])
    Image.fromarray(np.full((4, 4), 1, np.uint16)).save(path)
    assert (transform(dict(said, seg_fields=[]))['gt_seg_map'] == 1).all()
    Image.fromarray(np.full((4, 4), value, np.uint16)).save(path)
    with pytest.raises(UserError, match=f'labels.png has the value {value}: values are whole'):
        transform(dict(said, seg_fields=[]))


class Broken:
    """A data set whose every image is broken."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return load(f'missing{index}.jpg')


def test_error_of_a_worker_keeps_its_message():
    with pytest.raises(UserError) as error:
        next(iter(DataLoader(Broken(), num_workers=1)))
    message = user_message(error.value)
    assert message.startswith('image missing0.jpg cannot be loaded')
    assert 'Traceback' not in message
    assert str(pickle.loads(pickle.dumps(UserError('text')))) == 'text'
