"""Annotations, label maps and archives with anything in them: a right result, or one message."""
import contextlib
import io
import json
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from fuzzing import bounded, changed, damaged, examples
from hypothesis import given
from hypothesis import strategies as st
from mmdet.datasets import CocoDataset
from mmengine.registry import DefaultScope
from PIL import Image
from pycocotools import mask as rle
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from downstream.data.coco import CocoCheck, read_coco
from downstream.data.label_maps import values_of
from downstream.data.loading import LoadImage, LoadLabels
from downstream.data.panoptic import id_to_rgb
from downstream.data.segments import PanopticCheck
from downstream.data.unpacking import LEAST, unpack
from downstream.errors import UserError, printable

WIDTH, HEIGHT = 48, 32


def told(text: str):
    """A message is a few lines that a terminal can show, whatever names are in it."""
    assert 0 < len(text) < 3000 and '\x1b' not in printable(text)


def readable(findings: list):
    for line in map(str, findings):
        told(line)
        assert line == printable(line) and '\n' not in line


# -- COCO's annotations ------------------------------------------------------------------------

def runs() -> dict:
    mask = np.zeros((HEIGHT, WIDTH), np.uint8, order='F')
    mask[5:20, 7:30] = 1
    found = rle.encode(mask)
    return dict(found, counts=found['counts'].decode())


SQUARE = [4, 4, 24, 4, 24, 24, 4, 24]
MASKS = [SQUARE], runs(), dict(size=[HEIGHT, WIDTH], counts=[100, 100, HEIGHT * WIDTH - 200])
DETECTION = dict(
    images=[dict(id=i, file_name=f'{i}.png', width=WIDTH, height=HEIGHT) for i in (1, 2, 3)],
    annotations=[dict(id=i, image_id=i, category_id=1 + i % 2, bbox=[4, 4, 20, 20], area=400,
                      iscrowd=0, segmentation=MASKS[i - 1]) for i in (1, 2, 3)],
    categories=[dict(id=1, name='disc', supercategory='shape'), dict(id=2, name='square')])
SEGMENTS = np.array([[1, 5] * (WIDTH // 2), [1, 300] * (WIDTH // 2)] * (HEIGHT // 2))
PANOPTIC = dict(
    images=DETECTION['images'],
    annotations=[dict(image_id=i, file_name=f'{i}.png', segments_info=[
        dict(id=1, category_id=1, bbox=[0, 0, 47, 32], area=768, iscrowd=0),
        dict(id=5, category_id=2, bbox=[1, 0, 47, 31], area=384, iscrowd=0),
        dict(id=300, category_id=2, bbox=[1, 1, 47, 31], area=384, iscrowd=0)]) for i in (1, 2, 3)],
    categories=[dict(id=1, name='disc', isthing=1), dict(id=2, name='sky', isthing=0)])


@pytest.fixture(scope='module')
def images(tmp_path_factory):
    """A folder of three images, with a folder of three panoptic maps in it."""
    folder = tmp_path_factory.mktemp('fuzz')
    (folder / 'maps').mkdir()
    for i in (1, 2, 3):
        Image.new('RGB', (WIDTH, HEIGHT)).save(folder / f'{i}.png')
        Image.fromarray(id_to_rgb(SEGMENTS)).save(folder / 'maps' / f'{i}.png')
    return folder


def scores_itself(content: dict, classes: tuple, folder: Path, images: Path, masks: bool):
    """What passes is what mmdet reads, and what COCO's evaluation finds all of."""
    file = folder / 'out.json'
    file.write_text(json.dumps(content))
    with contextlib.redirect_stdout(io.StringIO()), DefaultScope.overwrite_default_scope('mmdet'):
        loaded = CocoDataset(ann_file=str(file), data_prefix=dict(img=str(images)), pipeline=[],
                             metainfo=dict(classes=classes), test_mode=True)
        assert len(loaded) == len(content['images'])
        truth = COCO(file)
        if not content['annotations']:
            return
        results = truth.loadRes([
            dict(image_id=a['image_id'], category_id=a['category_id'], bbox=a['bbox'], score=1.,
                 **{'segmentation': truth.annToRLE(a)} if masks else {})
            for a in content['annotations']])
        for kind in ('bbox', 'segm') if masks else ('bbox', ):
            scores = COCOeval(truth, results, kind)
            scores.evaluate()
            scores.accumulate()
            scores.summarize()
            assert scores.stats[0] > 0.999 or all(a['iscrowd'] for a in content['annotations'])


def right_or_told(file, images):
    """A file of annotations is read so that it scores itself, or one message says why not."""
    try:
        check = CocoCheck(read_coco(file), file, images)
    except UserError as error:
        return told(str(error))
    readable(check.findings)
    if not any(finding.error for finding in check.findings):
        scores_itself(check.content, check.classes, file.parent, images, not check.without_mask)


@examples(40)
@given(changed(DETECTION))
def test_fuzz_coco(images, content):
    with bounded() as folder:
        file = folder / 'x.json'
        file.write_text(json.dumps(content))
        right_or_told(file, images)


@examples(40)
@given(damaged(json.dumps(DETECTION).encode()))
def test_fuzz_coco_bytes(images, content):
    with bounded() as folder:
        file = folder / 'x.json'
        file.write_bytes(content)
        right_or_told(file, images)


@examples(30)
@given(changed(PANOPTIC))
def test_fuzz_panoptic(images, content):
    with bounded() as folder:
        file = folder / 'x.json'
        file.write_text(json.dumps(content))
        try:
            check = PanopticCheck(read_coco(file, panoptic=True), file, images, images / 'maps')
        except UserError as error:
            return told(str(error))
        readable(check.findings)
        if not any(finding.error for finding in check.findings):
            things = check.instances()
            scores_itself(things, tuple(c['name'] for c in things['categories']), folder, images,
                          masks=True)


# -- pictures ----------------------------------------------------------------------------------

LABELS = np.arange(HEIGHT * WIDTH).reshape(HEIGHT, WIDTH) % 3


def file_of(pixels: np.ndarray, kind: str = 'PNG', **options) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


MAPS = [file_of(LABELS.astype(np.uint8)), file_of(LABELS.astype(np.uint16)),
        file_of(LABELS.astype(np.int32), 'TIFF'), file_of(LABELS.astype(np.float32), 'TIFF'),
        file_of((LABELS > 0), bits=1), file_of(LABELS.astype(np.uint8), 'WEBP', lossless=True),
        file_of(LABELS.astype(np.uint8), 'BMP'), file_of(id_to_rgb(LABELS))]
VALUES = {0: 0, 1: 1, 2: 255}


@examples(100)
@given(st.sampled_from(MAPS).flatmap(damaged))
def test_fuzz_label_maps(content):
    """What a check calls good is loaded, with the numbers that it counted."""
    with bounded() as folder:
        image, labels = folder / 'a.png', folder / 'labels.png'
        Image.new('RGB', (WIDTH, HEIGHT)).save(image)
        labels.write_bytes(content)
        found = values_of((str(labels), str(image)))
        good = not isinstance(found, str) and {value for value, _ in found[1]} <= VALUES.keys()
        try:
            loaded = LoadLabels(values=VALUES)(dict(
                img_path=str(image), ori_shape=(HEIGHT, WIDTH), seg_map_path=str(labels),
                reduce_zero_label=False, seg_fields=[]))['gt_seg_map']
        except UserError as error:
            assert not good
            return told(str(error))
        assert good
        counted = dict.fromkeys(VALUES.values(), 0)
        for value, number in found[1]:
            counted[VALUES[value]] += number
        assert {number: int((loaded == number).sum()) for number in counted} == counted


PICTURES = [file_of(np.random.default_rng(0).integers(0, 255, (HEIGHT, WIDTH, 3), np.uint8), kind)
            for kind in ('PNG', 'JPEG', 'BMP', 'TIFF', 'WEBP')]


@examples(60)
@given(st.sampled_from(PICTURES).flatmap(damaged))
def test_fuzz_images(content):
    with bounded() as folder:
        path = folder / 'a.img'
        path.write_bytes(content)
        try:
            loaded = LoadImage()(dict(img_path=str(path)))
        except UserError as error:
            return told(str(error))
        assert loaded['img'].dtype == np.uint8 and loaded['img'].ndim == 3


# -- archives ----------------------------------------------------------------------------------

FILES = {'top/a.txt': b'one', 'top/in/b.bin': bytes(3000), 'c' * 120: b'three'}


def archive(suffix: str) -> bytes:
    buffer = io.BytesIO()
    if suffix == '.zip':
        with zipfile.ZipFile(buffer, 'w', zipfile.ZIP_DEFLATED) as file:
            for name, content in FILES.items():
                file.writestr(name, content)
    else:
        with tarfile.open(fileobj=buffer, mode=f'w{suffix}') as file:
            for name, content in FILES.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                file.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


ARCHIVES = [(name, archive(kind)) for name, kind in (
    ('x.zip', '.zip'), ('x.tar', ':'), ('x.tar.gz', ':gz'), ('x.tar.xz', ':xz'))]


@examples(100)
@given(st.sampled_from(ARCHIVES).flatmap(lambda pair: st.tuples(
    st.just(pair[0]), damaged(pair[1]))))
def test_fuzz_archives(archive):
    """Nothing comes to lie elsewhere, and no link anywhere."""
    with bounded() as folder:
        (folder / archive[0]).write_bytes(archive[1])
        try:
            unpack(folder / archive[0], folder / 'in' / 'out')
        except UserError as error:
            told(str(error))
        there = [path for path in folder.rglob('*') if not path.is_dir() or path.is_symlink()]
        assert not any(path.is_symlink() for path in there)
        assert all((folder / 'in' / 'out') in path.parents for path in there
                   if path != folder / archive[0])
        assert sum(path.stat().st_size for path in there) <= LEAST + len(archive[1])
