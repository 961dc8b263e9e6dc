"""Panoptic data: what is loaded, and what is refused."""
import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
from mmengine import Config
from mmengine.registry import DATASETS, TRANSFORMS, DefaultScope

from downstream.data import checks, panoptic
from downstream.data.generated import make_demo_data
from downstream.errors import UserError

ROOT = Path(__file__).resolve().parents[3]


def test_ids_and_colours():
    ids = np.array([[0, 1, 255], [256, 65536, 3226956]])
    colours = panoptic.id_to_rgb(ids)
    assert colours[1, 2].tolist() == [0x4c, 0x3d, 0x31]  # R + 256 G + 65536 B
    assert (panoptic.rgb_to_id(colours) == ids).all()


@pytest.fixture(scope='module')
def demo_root(tmp_path_factory):
    root = tmp_path_factory.mktemp('demo')
    make_demo_data(root, train=2, val=2, size=64)
    return root


def test_labels_of_the_data_set(demo_root, monkeypatch):
    """Every pixel's class and every thing's mask, through the pipeline of a config."""
    monkeypatch.setenv('DEMO_ROOT', str(demo_root))
    cfg = Config.fromfile(ROOT / 'configs' / 'demo' / 'mask2former_panoptic_focalnet.py')
    with DefaultScope.overwrite_default_scope('mmdet'):
        dataset = DATASETS.build(cfg.val_dataloader.dataset)
        sample = dataset[1]['data_samples']
    bgr = cv2.imread(str(demo_root / 'coco/annotations/panoptic_val2017/000000100002.png'))
    ids = panoptic.rgb_to_id(bgr[..., ::-1])
    assert (sample.gt_sem_seg.sem_seg[0].numpy() == ids % 1000 - 1).all()  # categories are 1..7
    things = [i for i in np.unique(ids) if i >= 1000]
    masks = sample.gt_instances.masks.to_ndarray()
    assert len(masks) == len(things) > 1
    for label, mask in zip(sample.gt_instances.labels, masks, strict=True):
        match, = np.unique(ids[mask.astype(bool)])
        assert match % 1000 - 1 == label and (mask == (ids == match)).all()


def load(**changes):
    cfg = Config.fromfile(ROOT / 'configs' / 'demo' / 'mask2former_panoptic_focalnet.py')
    for key, value in changes.items():
        cfg.merge_from_dict({key.replace('__', '.'): value})
    return cfg


def damaged(root, monkeypatch, tmp_path):
    shutil.copytree(root, tmp_path / 'demo')
    monkeypatch.setenv('DEMO_ROOT', str(tmp_path / 'demo'))
    return tmp_path / 'demo' / 'coco' / 'annotations'


@pytest.mark.parametrize('damage, fragments', [
    (lambda c: c['annotations'][0].pop('segments_info'), ['entry 0 of annotations']),
    (lambda c: c['annotations'][0]['segments_info'][0].update(category_id=99), ['ids 99']),
    (lambda c: c['categories'][0].update(isthing=0), ['agree which categories are things', 'disc']),
    (lambda c: c['categories'].reverse(), ['in the order sand, water']),
])
def test_damaged_annotations(demo_root, monkeypatch, tmp_path, damage, fragments):
    path = damaged(demo_root, monkeypatch, tmp_path) / 'panoptic_train2017.json'
    content = json.loads(path.read_text())
    damage(content)
    path.write_text(json.dumps(content))
    with pytest.raises(UserError) as error:
        checks.check_data(load(), 'train')
    assert all(fragment in str(error.value) for fragment in fragments), error.value


def test_damaged_maps(demo_root, monkeypatch, tmp_path):
    annotations = damaged(demo_root, monkeypatch, tmp_path)
    path = annotations / 'panoptic_train2017' / '000000000001.png'
    content = path.read_bytes()
    path.unlink()
    with pytest.raises(UserError, match='panoptic maps of the images .*000000000001.png'):
        checks.check_data(load(), 'train')
    with DefaultScope.overwrite_default_scope('mmdet'):
        dataset = DATASETS.build(load().train_dataloader.dataset)
        with pytest.raises(UserError, match='panoptic map .*000000000001.png cannot .* No such'):
            dataset[0]
        for broken in (content[:300], b''):
            path.write_bytes(broken)
            with pytest.raises(UserError, match='panoptic map .*000000000001.png .* truncated'):
                dataset[0]
        cv2.imwrite(str(path), np.zeros((3, 5, 3), np.uint8))
        with pytest.raises(UserError, match=r'has the shape \(3, 5\), its image .*\(64, 64\)'):
            dataset[0]


def test_wrong_kinds_of_files_and_numbers(demo_root, monkeypatch):
    monkeypatch.setenv('DEMO_ROOT', str(demo_root))
    instances = 'annotations/instances_train2017.json'
    with pytest.raises(UserError, match='categories has no isthing'):
        checks.check_data(load(train_dataloader__dataset__ann_file=instances), 'train')
    with pytest.raises(UserError, match='num_stuff_classes is 53, but .* has 3 stuff classes'):
        checks.check_data(load(model__panoptic_head__num_stuff_classes=53), 'train')
    with pytest.raises(UserError, match='should be metainfo.thing_classes'):
        checks.check_data(load(train_dataloader__dataset__metainfo__thing_classes=('disc', )),
                          'train')
    cfg = Config.fromfile(ROOT / 'configs' / 'demo' / 'maskrcnn_focalnet.py')
    cfg.train_dataloader.dataset.ann_file = 'annotations/panoptic_train2017.json'
    with pytest.raises(UserError, match='it is a panoptic file, the data set reads boxes'):
        checks.check_data(cfg, 'train')


def test_pictures_without_labels():
    transform = TRANSFORMS.build(dict(type='LoadPanoptic'))
    results = transform(dict(img_path='x.jpg', ori_shape=(4, 4), instances=[]))
    assert len(results['gt_bboxes']) == 0 and 'gt_seg_map' not in results
