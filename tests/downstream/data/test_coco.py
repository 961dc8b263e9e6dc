"""COCO annotations with anything in any place: a right result, or one message."""
import json
import os

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as rle
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from downstream.data.coco import CocoCheck, read_coco, run_lengths
from downstream.errors import UserError, printable, shown

SQUARE = [[4, 4, 24, 4, 24, 24, 4, 24]]
RUNS = dict(size=[32, 48], counts=[100, 100, 32 * 48 - 200])


def content():
    return dict(
        images=[dict(id=i, file_name=f'{i}.jpg', width=48, height=32) for i in range(1, 5)],
        annotations=[dict(id=i, image_id=i, category_id=1 + i % 2, bbox=[4, 4, 20, 20], area=400,
                          iscrowd=0, segmentation=[list(SQUARE[0])]) for i in range(1, 5)],
        categories=[dict(id=1, name='disc'), dict(id=2, name='square')])


@pytest.fixture
def check(tmp_path):
    """A function that checks content, or the text of a file."""
    for i in range(1, 5):
        Image.new('RGB', (48, 32)).save(tmp_path / f'{i}.jpg')

    def run(said, **kwargs):
        path = tmp_path / 'x.json'
        path.write_text(said if isinstance(said, str) else json.dumps(said))
        return CocoCheck(read_coco(path), path, tmp_path, **kwargs)
    return run


ANYTHING = [None, True, 0, -1, 1.5, '', 'abc', [], {}, [1], {'a': 1}, [[]], [None], float('inf'),
            float('nan'), 10**30, 'a\nb', '\x1b[2J', '../../etc/passwd', '/etc/passwd', 'a' * 5000,
            '\0', '\udcff', [float('nan')] * 4, [0, 0, 10**400, 5], [0, 0, 1e308, 1e308],
            [-5] * 4, [[0, 0, 1e9, 0, 1e9, 1e9]], [[float('nan')] * 6],
            {'size': [9, 9], 'counts': 'a'}]
PLACES = [('images', 'id'), ('images', 'file_name'), ('images', 'width'), ('categories', 'id'),
          ('categories', 'name'), ('categories', 'supercategory'), ('annotations', 'id'),
          ('annotations', 'image_id'), ('annotations', 'category_id'), ('annotations', 'bbox'),
          ('annotations', 'area'), ('annotations', 'iscrowd'), ('annotations', 'segmentation')]


@pytest.mark.parametrize(('part', 'key'), PLACES)
def test_anything_in_any_place(check, tmp_path, part, key):
    """What passes is what COCO's own evaluation takes."""
    passed = 0
    for value in ANYTHING:
        said = content()
        said[part][0][key] = value
        try:
            checked = check(said)
        except UserError as error:
            assert len(str(error)) < 1000
            continue
        for text in map(str, checked.findings):
            assert len(text) < 1500 and text == printable(text) and '\n' not in text
        if any(finding.error for finding in checked.findings):
            continue
        passed += 1
        path = tmp_path / 'out.json'
        path.write_text(json.dumps(checked.content))
        truth = COCO(path)
        kinds = ('bbox', ) if checked.without_mask else ('bbox', 'segm')
        results = truth.loadRes([
            dict(image_id=a['image_id'], category_id=a['category_id'], bbox=a['bbox'], score=1.,
                 **{'segmentation': truth.annToRLE(a)} if len(kinds) == 2 else {})
            for a in checked.content['annotations']])
        for kind in kinds:
            scores = COCOeval(truth, results, kind)
            scores.evaluate()
            scores.accumulate()
            scores.summarize()
            assert scores.stats[0] > 0.999, (value, kind)
    assert passed or key in ('file_name', 'category_id') or (part, key) == ('categories', 'id')


@pytest.mark.parametrize('text', [
    '[]', '5', 'null', '"text"', '{}', '{"images": {}, "annotations": [], "categories": []}',
    '{"images": [1], "annotations": [1], "categories": [1]}', '[' * 100000, '{"a":' * 100000, '',
    '{"images": [' + '1' * 5000 + ']}'])
def test_other_files(check, text):
    with pytest.raises(UserError, match='annotation file .*x.json'):
        check(text)


def test_ids_that_count_from_0_are_numbered(check):
    """COCO's evaluation takes an object whose id is 0 for missed."""
    said = content()
    for annotation in said['annotations']:
        annotation['id'] -= 1
    assert [a['id'] for a in check(said).annotations] == [1, 2, 3, 4]


def test_ids_that_are_text_are_numbered(check):
    said = content()
    for image, annotation in zip(said['images'], said['annotations'], strict=True):
        image['id'] = annotation['image_id'] = f'photo {image["id"]}'
        annotation['category_id'] = 'ab'[annotation['category_id'] - 1]
    for category, letter in zip(said['categories'], 'ab', strict=True):
        category['id'] = letter
    checked = check(said)
    assert [a['image_id'] for a in checked.annotations] == [1, 2, 3, 4]
    assert [a['category_id'] for a in checked.annotations] == [2, 1, 2, 1]
    assert [c['id'] for c in checked.content['categories']] == [1, 2]
    assert 'numbered' in ' '.join(checked.notes) and not checked.findings


def test_class_names_that_are_numbers(check):
    said = content()
    said['categories'][0]['name'], said['categories'][1]['name'] = 1, ' 2 '
    checked = check(said)
    assert checked.classes == ('1', '2')
    assert [c['name'] for c in checked.content['categories']] == ['1', '2']  # mmdet compares them


def test_areas_of_0_are_computed(check):
    """mmdet leaves such objects out."""
    said = content()
    said['annotations'][0]['area'] = 0
    said['annotations'][1]['area'] = float('nan')
    assert [a['area'] for a in check(said).annotations] == [400] * 4


def test_a_file_of_another_kind(check):
    said = content()
    said['annotations'] = [dict(image_id=1, segments_info=[])]
    with pytest.raises(UserError, match='it looks like a file of panoptic maps'):
        check(said)


@pytest.mark.parametrize('mask', [
    dict(RUNS, size=[48, 32]), dict(RUNS, counts=[1]), dict(RUNS, counts=[-5, 1541]),
    dict(RUNS, counts='zzz'), dict(RUNS, counts='~'), dict(RUNS, counts=None),
    dict(RUNS, size=['32', '48']), dict(RUNS, size=None), [[0, 0, 1e9, 0, 1e9, 1e9]],
    [[0, 0, float('inf'), 0, 9, 9]]])
def test_masks_that_cannot_lie_in_their_image(check, mask):
    said = content()
    said['annotations'][0]['segmentation'] = mask
    finding, = check(said).findings
    assert finding.error and 'mask that cannot lie in its image (id 1)' in str(finding)


def test_run_lengths():
    random = np.random.default_rng(0)
    for _ in range(100):
        mask = random.random(random.integers(1, 90, 2)) < random.random()
        text = rle.encode(np.asfortranarray(mask, np.uint8))['counts'].decode()
        lengths = run_lengths(text)
        assert (np.repeat(np.arange(len(lengths)) % 2, lengths) == mask.T.ravel()).all()
    assert run_lengths('') == run_lengths('o') == run_lengths(' ') == []


def test_pipes_and_images_elsewhere(check, tmp_path):
    folder = tmp_path / 'elsewhere'
    folder.mkdir()
    (tmp_path / '1.jpg').rename(folder / '1.jpg')
    (tmp_path / '2.jpg').unlink()
    os.mkfifo(tmp_path / '2.jpg')
    said = content()
    said['images'][0]['file_name'] = str(folder / '1.jpg')  # a whole path, as some tools write
    said['images'][2]['file_name'] = f'../{tmp_path.name}/3.jpg'
    finding, = check(said).findings
    assert '1 of 4 images are not in' in str(finding) and '2.jpg' in str(finding)


def test_what_others_wrote_in_a_message():
    assert printable('a\x1b[2J\nb\udcff') == 'a\\x1b[2J\nb\\udcff'
    nested = ['x']
    for _ in range(9):
        nested = [nested] * 9
    assert len(shown(nested)) < 3000 and len(shown('a' * 10**6)) < 100
