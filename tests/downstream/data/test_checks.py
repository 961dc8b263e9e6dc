"""Bad data ends the tools with one clear message: what is wrong, where, and what to do."""
import json
import shutil

import numpy as np
import pytest
from commands import command, refused
from mmengine.config import Config, ConfigDict
from PIL import Image

from downstream import errors
from downstream.data.checks import check_all_there, check_data, head_classes, leaf_datasets

train = command('train').main
pytestmark = pytest.mark.usefixtures('elsewhere')


def test_wrong_root_names_path_variable_and_tree(detection, monkeypatch):
    monkeypatch.setenv('COCO_ROOT', 'nowhere')
    message = refused(train, detection)
    assert 'train_dataloader: the data folder nowhere does not exist' in message
    assert 'COCO_ROOT (now nowhere)' in message
    for path in ('annotations/train.json', 'annotations/val.json', 'train/', 'val/'):
        assert f'nowhere/{path}' in message
    assert 'docs/datasets.md' in message
    monkeypatch.delenv('COCO_ROOT')
    assert 'COCO_ROOT (not set, so data/coco is used)' in refused(train, detection)


def test_wrong_root_of_segmentation(segmentation, monkeypatch):
    monkeypatch.delenv('ADE20K_ROOT')
    message = refused(train, segmentation)
    assert 'the data folder data/ade does not exist' in message
    assert 'ADE20K_ROOT (not set, so data/ade is used)' in message
    assert 'data/ade/images/train/' in message


def test_what_data_checked_is_not_read_again(detection, coco):
    """Only how it goes together with the model is looked at."""
    cfg = Config.fromfile(detection)
    for split in ('train', 'val'):
        (coco / 'annotations' / f'{split}.json').write_text('no JSON')
    with pytest.raises(errors.UserError, match='is not JSON'):
        check_data(cfg, 'train', 'val')
    check_data(cfg, 'train', 'val', checked=True)
    cfg.model.roi_head.bbox_head.num_classes = 3
    with pytest.raises(errors.UserError, match='bbox_head.num_classes is 3'):
        check_data(cfg, 'train', 'val', checked=True)


def edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize('damage, fragments', [
    (lambda r: (r / 'annotations/train.json').unlink(),
     ['annotation file', 'annotations/train.json does not exist']),
    (lambda r: shutil.rmtree(r / 'val'), ['val_dataloader', 'val/ (data_prefix.img) does not']),
    (lambda r: [p.unlink() for p in (r / 'train').iterdir()], ['(data_prefix.img) is empty']),
    (lambda r: (r / 'train/train1.jpg').unlink(), ['1 of 2 images listed in', ': train1.jpg']),
    (lambda r: (r / 'annotations/train.json').write_text('{"images": [{"id"'),
     ['train.json is not JSON, or not all of it', 'column']),
    (lambda r: (r / 'annotations/train.json').write_bytes(b'\xff\xfe\x00'), ['is not JSON']),
    (lambda r: (r / 'annotations/train.json').write_text('[]'), ['not in COCO format']),
    (lambda r: edit(r / 'annotations/train.json', lambda c: c.pop('annotations')),
     ['not in COCO format: no list of annotations']),
    (lambda r: edit(r / 'annotations/train.json', lambda c: c.update(images=[])),
     ['lists no images']),
    (lambda r: edit(r / 'annotations/train.json', lambda c: c.update(annotations=[])),
     ['lists no annotations']),
    (lambda r: edit(r / 'annotations/train.json', lambda c: c['images'][1].pop('file_name')),
     ['entry 1 of images has no file_name']),
    (lambda r: edit(r / 'annotations/train.json', lambda c: c.update(images=[1])),
     ['entry 0 of images has no id, file_name']),
    (lambda r: edit(r / 'annotations/train.json', lambda c: c['categories'][0].pop('name')),
     ['entry 0 of categories has no name']),
    (lambda r: edit(r / 'annotations/train.json', lambda c: c['annotations'][0].pop('bbox')),
     ['entry 0 of annotations has no bbox']),
    (lambda r: edit(r / 'annotations/train.json',
                    lambda c: c['annotations'][0].update(category_id=99)),
     ['categories that it does not define: ids 99']),
    (lambda r: edit(r / 'annotations/val.json', lambda c: c['categories'].pop()),
     ['val_dataloader', 'the config has 2 classes', 'has 1 categories', ': square']),
    # mmdet would take one class for the other, in training or in the score
    (lambda r: edit(r / 'annotations/val.json', lambda c: c['categories'].reverse()),
     ['val_dataloader', 'in the order square, disc, the config its classes as disc, square']),
])
def test_damaged_coco(detection, coco, damage, fragments):
    damage(coco)
    message = refused(train, detection)
    assert all(fragment in message for fragment in [*fragments, 'docs/datasets.md']), message


@pytest.mark.parametrize('damage, fragments', [
    (lambda r: (r / 'labels/train/1.png').unlink(),
     ['1 of 2 label maps of the images in', ': 1.png']),
    (lambda r: (r / 'images/train/0.jpg').unlink(),
     ['1 of 2 images that have a label map', ': 0.jpg']),
    (lambda r: [p.rename(p.with_suffix('.tif')) for p in (r / 'images/val').iterdir()],
     ['val_dataloader', 'holds no *.jpg images']),
    (lambda r: shutil.rmtree(r / 'labels'), ['labels/train (data_prefix.seg_map_path) does not']),
])
def test_damaged_ade(segmentation, ade, damage, fragments):
    damage(ade)
    message = refused(train, segmentation)
    assert all(fragment in message for fragment in [*fragments, 'docs/datasets.md']), message


@pytest.mark.parametrize('task, option, fragments', [
    ('detection', 'model.roi_head.bbox_head.num_classes=80',
     ['model.roi_head.bbox_head.num_classes is 80', 'has 2 classes']),
    ('detection', "train_dataloader.dataset.metainfo.classes=disc,square,star",
     ['the config has 3 classes', 'has 2 categories', ': star']),
    ('segmentation', 'model.decode_head.num_classes=150',
     ['model.decode_head.num_classes is 150', 'has 2 classes']),
    ('segmentation', 'train_dataloader.dataset.metainfo.classes=wall,spaceship',
     ['ADE20KDataset', 'spaceship', 'not a subset']),
    ('detection', 'val_evaluator.ann_file=other.json', ['val_evaluator', 'other.json']),
])
def test_wrong_classes(request, task, option, fragments):
    message = refused(train, request.getfixturevalue(task), '--cfg-options', option)
    assert all(fragment in message for fragment in fragments), message


@pytest.mark.parametrize('folder, name', [('images/train', '0.jpg'), ('labels/train', '0.png')])
def test_truncated_file_in_a_worker(segmentation, ade, folder, name):
    path = ade / folder / name
    path.write_bytes(path.read_bytes()[:60])
    message = refused(train, segmentation, '--cfg-options', 'train_dataloader.num_workers=1')
    assert f'{folder}/{name} cannot be loaded' in message and '--resume' in message


@pytest.mark.parametrize('label', [np.zeros((32, 32), np.uint8), np.zeros((64, 64, 3), np.uint8)])
def test_label_map_of_another_shape(segmentation, ade, label):
    Image.fromarray(label).save(ade / 'labels/train/0.png')
    message = refused(train, segmentation)
    assert 'labels/train/0.png has the shape' in message and 'one class number a pixel' in message


def test_other_processes_leave_the_data_to_the_first(detection, monkeypatch):
    monkeypatch.setenv('COCO_ROOT', 'nowhere')
    monkeypatch.setenv('RANK', '1')
    with pytest.raises(FileNotFoundError):
        train([str(detection)])


def test_wrappers_are_looked_into(coco):
    leaf = dict(type='mmdet.CocoDataset', data_root=str(coco), ann_file='annotations/train.json')
    wrapped = ConfigDict(type='ConcatDataset', datasets=[
        dict(type='RepeatDataset', times=2, dataset=leaf), leaf])
    assert [d.ann_file for d in leaf_datasets(wrapped)] == [f'{coco}/annotations/train.json'] * 2


def test_heads():
    model = dict(backbone=dict(num_classes=1000), rpn_head=dict(num_classes=1),
                 roi_head=dict(bbox_head=[dict(num_classes=3), dict(num_classes=4)],
                               semantic_head=dict(num_classes=183)),
                 auxiliary_head=dict(num_classes=5),
                 panoptic_head=dict(num_things_classes=6, num_stuff_classes=7))
    assert {name: number for name, _, number in head_classes(model)} == {
        'model.roi_head.bbox_head.0.num_classes': 3, 'model.roi_head.bbox_head.1.num_classes': 4,
        'model.auxiliary_head.num_classes': 5, 'model.panoptic_head.num_things_classes': 6,
        'model.panoptic_head.num_stuff_classes': 7}


def test_one_listing_serves_many_names(tmp_path):
    (tmp_path / 'sub').mkdir()
    (tmp_path / 'sub/a.jpg').touch()
    check_all_there(str(tmp_path), ['sub/a.jpg'] * 100000, 'images')
    with pytest.raises(errors.UserError, match=r'2 of 3 images are not in .*: a.jpg, other/a.jpg'):
        check_all_there(str(tmp_path), ['a.jpg', 'sub/a.jpg', 'other/a.jpg'], 'images')
