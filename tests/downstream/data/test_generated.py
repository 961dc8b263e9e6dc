"""The demo data set: reproducible, consistent between its layouts, and not solved by colour."""
import json
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from pycocotools import mask as rle
from pycocotools.coco import COCO

from downstream.data import generated as tool

SCRIPT = Path(__file__).resolve().parents[3] / 'tools' / 'make_demo_data.py'

SMALL = dict(train=6, val=3, size=96)
SPLITS = [('train', 'training', 1, 6), ('val', 'validation', 100001, 3)]


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    out = tmp_path_factory.mktemp('demo') / 'set'
    tool.make_demo_data(out, **SMALL)
    return out


def contents(out):
    return {str(f.relative_to(out)): f.read_bytes() for f in out.rglob('*') if f.is_file()}


def load(path):
    return json.loads(path.read_text())


def read_panoptic(path):
    b, g, r = cv2.imread(str(path)).astype(int).transpose(2, 0, 1)
    return r + 256 * g + 256 ** 2 * b


def test_same_arguments_give_the_same_bytes(data, tmp_path):
    tool.make_demo_data(tmp_path, **SMALL)
    assert contents(tmp_path) == contents(data)


def test_seed_changes_every_image(data, tmp_path):
    tool.make_demo_data(tmp_path, **SMALL, seed=1)
    ours, theirs = contents(data), contents(tmp_path)
    assert ours.keys() == theirs.keys()
    assert all(ours[f] != theirs[f] for f in ours if f.endswith('.jpg'))


def test_all_images_differ(data):
    coco = [content for f, content in contents(data).items()
            if f.startswith('coco') and f.endswith('.jpg')]
    assert len(set(coco)) == len(coco) == 9


def test_an_image_does_not_depend_on_the_counts(data, tmp_path):
    tool.make_demo_data(tmp_path, train=2, val=4, size=96)
    full, other = contents(data), contents(tmp_path)
    shared = [f for f in full.keys() & other.keys() if not f.endswith('.json')]
    assert len(shared) == 4 * (2 + 3)
    assert all(full[f] == other[f] for f in shared)
    name = 'coco/annotations/instances_train2017.json'
    few, many = (load(root / name)['annotations'] for root in (tmp_path, data))
    assert few == many[:len(few)]


@pytest.mark.parametrize(('name', 'ade_name', 'first_id', 'count'), SPLITS)
def test_the_layouts_agree_pixel_for_pixel(data, name, ade_name, first_id, count):
    annotations = data / 'coco/annotations'
    instances = COCO(str(annotations / f'instances_{name}2017.json'))
    panoptic = load(annotations / f'panoptic_{name}2017.json')
    ade = data / 'ade/ADEChallengeData2016'
    assert sorted(instances.imgs) == list(range(first_id, first_id + count))
    assert panoptic['images'] == instances.dataset['images']
    assert [a['image_id'] for a in panoptic['annotations']] == sorted(instances.imgs)

    for index, entry in enumerate(panoptic['annotations']):
        image = instances.imgs[entry['image_id']]
        ids = read_panoptic(annotations / f'panoptic_{name}2017' / entry['file_name'])
        stem = f'ADE_{name}_{index + 1:08d}'
        labels = cv2.imread(str(ade / 'annotations' / ade_name / f'{stem}.png'), -1)
        photo = data / f'coco/{name}2017' / image['file_name']
        assert photo.read_bytes() == (ade / 'images' / ade_name / f'{stem}.jpg').read_bytes()
        assert cv2.imread(str(photo)).shape == (96, 96, 3)
        assert (image['width'], image['height']) == (96, 96)
        assert labels.dtype == np.uint8 and labels.shape == ids.shape == (96, 96)

        # panoptic segments cover the image and carry the ADE labels
        segments = entry['segments_info']
        assert {s['id'] for s in segments} == set(np.unique(ids))
        assert sum(s['area'] for s in segments) == ids.size
        for segment in segments:
            check_region(ids == segment['id'], segment, labels)

        # instances are exactly the things among them
        things = instances.imgToAnns[image['id']]
        assert 2 <= len(things) <= 6
        masks = [instances.annToMask(a).astype(bool) for a in things]
        assert sum(m.astype(int) for m in masks).max() == 1
        assert np.array_equal(np.any(masks, 0), labels <= len(tool.THINGS))
        for mask, annotation in zip(masks, things, strict=True):
            assert len(np.unique(ids[mask])) == 1
            assert annotation['area'] >= tool.MIN_PIXELS
            assert annotation['area'] == rle.area(annotation['segmentation'])
            check_region(mask, annotation, labels)


def check_region(mask, annotation, labels):
    y, x = np.nonzero(mask)
    box = [x.min(), y.min(), np.ptp(x) + 1, np.ptp(y) + 1]
    assert annotation['bbox'] == box
    assert annotation['area'] == mask.sum()
    assert annotation['iscrowd'] == 0
    assert set(labels[mask]) == {annotation['category_id']}


def test_categories_and_unique_ids(data):
    annotations = data / 'coco/annotations'
    names = dict(enumerate(tool.THINGS + tool.STUFF, 1))
    ids = []
    for name, *_ in SPLITS:
        instances = load(annotations / f'instances_{name}2017.json')
        panoptic = load(annotations / f'panoptic_{name}2017.json')
        ids += [a['id'] for a in instances['annotations']]
        assert [c['id'] for c in instances['categories']] == [1, 2, 3, 4]
        assert {c['id']: c['name'] for c in panoptic['categories']} == names
        assert [c['isthing'] for c in panoptic['categories']] == [1] * 4 + [0] * 3
    assert len(set(ids)) == len(ids) and 0 not in ids


def mean_colours(kinds, images=80):
    """Mean RGB and category of every segment of the categories `kinds` in fresh scenes."""
    colours, categories = [], []
    for image_id in range(1, images + 1):
        image, ids = tool.draw_scene(0, image_id, 64)
        for i in np.unique(ids):
            if i % tool.INSTANCE in kinds:
                colours.append(image[ids == i].mean(0))
                categories.append(i % tool.INSTANCE)
    return np.array(colours), np.array(categories)


def guess_by_colour(colours, categories):
    """Share of segments whose category is that of the segment nearest in colour."""
    distance = np.linalg.norm(colours[:, None] - colours, axis=2)
    np.fill_diagonal(distance, np.inf)
    return np.mean(categories[distance.argmin(1)] == categories)


def test_colour_is_a_hint_to_things_and_no_more():
    colours, categories = mean_colours((1, 2, 3, 4))
    assert len(categories) > 200
    assert 0.4 < guess_by_colour(colours, categories) < 0.9


def test_colour_is_a_hint_to_stuff_and_no_more():
    colours, categories = mean_colours((5, 6, 7))
    assert set(categories) == {5, 6, 7}
    assert guess_by_colour(colours, categories) < 0.95


def test_smallest_images_hold_two_things():
    for image_id in range(1, 51):
        _, ids = tool.draw_scene(0, image_id, 32)
        assert len(np.unique(ids[ids >= tool.INSTANCE])) >= 2


def test_complete_set_is_left_alone(tmp_path, capsys):
    args = dict(train=1, val=1, size=32)
    tool.make_demo_data(tmp_path, **args)
    times = {f: f.stat().st_mtime_ns for f in tmp_path.rglob('*')}
    capsys.readouterr()
    tool.make_demo_data(tmp_path, **args)
    assert 'already' in capsys.readouterr().out
    assert times == {f: f.stat().st_mtime_ns for f in tmp_path.rglob('*')}


def test_damaged_or_different_set_is_made_anew(tmp_path):
    tool.make_demo_data(tmp_path, train=3, val=1, size=32)
    whole = contents(tmp_path)
    (tmp_path / 'mine.txt').write_text('keep')

    for file in (tmp_path / 'coco/train2017').iterdir():
        file.unlink()
    tool.make_demo_data(tmp_path, train=3, val=1, size=32)
    assert contents(tmp_path) == whole | {'mine.txt': b'keep'}

    tool.make_demo_data(tmp_path, train=1, val=1, size=32)
    assert len(list((tmp_path / 'coco/train2017').iterdir())) == 1
    assert (tmp_path / 'mine.txt').exists()


def test_interrupted_run_is_made_anew(tmp_path, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(tool, 'describe', interrupt)
        with pytest.raises(KeyboardInterrupt):
            tool.make_demo_data(tmp_path, train=1, val=1, size=32)
    assert load(tmp_path / 'demo.json')['complete'] is False
    tool.make_demo_data(tmp_path, train=1, val=1, size=32)
    assert load(tmp_path / 'demo.json')['complete'] is True


@pytest.mark.parametrize('existing', ['coco/train2017/000000000009.jpg', 'demo.json'])
def test_data_of_others_is_never_removed(tmp_path, existing):
    file = tmp_path / existing
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text('[]')
    with pytest.raises(ValueError, match='not made by this tool'):
        tool.make_demo_data(tmp_path, train=1, val=1, size=32)
    assert contents(tmp_path) == {existing: b'[]'}


@pytest.mark.parametrize('wrong', [dict(size=31), dict(train=-1), dict(val=-1), dict(seed=-1),
                                   dict(train=100001)])
def test_bad_arguments_write_nothing(tmp_path, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        tool.make_demo_data(tmp_path / 'out', **wrong)
    assert not (tmp_path / 'out').exists()


def test_command_line(tmp_path):
    def run(*args):
        return subprocess.run([sys.executable, str(SCRIPT), *map(str, args)],
                              capture_output=True, text=True)

    good = run(tmp_path / 'out', '--train', 1, '--val', 0, '--size', 32)
    assert good.returncode == 0 and '1 train and 0 val' in good.stdout
    assert load(tmp_path / 'out/coco/annotations/instances_val2017.json')['images'] == []

    (tmp_path / 'file').touch()
    bad = run(tmp_path / 'file')
    assert bad.returncode == 1 and bad.stdout == ''
    assert bad.stderr.splitlines() == [f"make_demo_data: {tmp_path / 'file'} is a file, "
                                       'not a folder']
