"""Results that are submitted: what is written for servers, and what is scored of it."""
import json
import pickle
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from commands import command, refused, weights_of
from mmengine.config import Config
from mmengine.registry import DATASETS, DefaultScope
from PIL import Image
from pycocotools.coco import COCO
from pycocotools.mask import decode

from downstream.data.generated import make_demo_data
from downstream.errors import UserError
from downstream.scoring import submissions
from downstream.training.launching import read_config

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.usefixtures('elsewhere')
score, run_test = command('score').main, command('test').main


def scored(capsys, *argv) -> dict[str, float]:
    """The data set's scores, as printed."""
    capsys.readouterr()
    score([str(arg) for arg in argv])
    return {name.strip(): float(value) for name, value in re.findall(
        r'^([\w ]+?) +(nan|[\d.]+)$', capsys.readouterr().out, re.MULTILINE)}


# -- numbers -----------------------------------------------------------------------------------

def test_cocos_ids():
    from mmdet.datasets import CocoDataset, CocoPanopticDataset
    things = submissions.category_ids(CocoDataset.METAINFO['classes'])
    both = submissions.category_ids(CocoPanopticDataset.METAINFO['classes'])
    assert (len(things), len(both), len(set(both))) == (80, 133, 133) and both[:80] == things
    named = dict(zip(CocoPanopticDataset.METAINFO['classes'], both, strict=True))
    # From the annotation files of COCO 2017.
    assert [named[name] for name in (
        'person', 'stop sign', 'hair drier', 'toothbrush', 'banner', 'water-other', 'rug-merged'
    )] == [1, 13, 89, 90, 92, 178, 200]
    assert submissions.category_ids(['disc', 'person']) == [1, 2]


REAL = [(ROOT.parent / 'shared/data' / folder, file) for folder, file in (
    ('coco_mini', 'instances_val2017.json'), ('coco_panoptic_mini', 'panoptic_val2017.json'))]


@pytest.mark.skipif(not all(folder.is_dir() for folder, _ in REAL), reason='no files of COCO')
def test_cocos_ids_in_its_files():
    for folder, file in REAL:
        kinds = json.loads((folder / 'annotations' / file).read_text())['categories']
        assert submissions.category_ids([c['name'] for c in kinds]) == [c['id'] for c in kinds]


def test_label_values(segmentation):
    cfg = Config.fromfile(segmentation)
    assert submissions.label_values(cfg).tolist() == [1, 2]  # ADE20K: 0 is "other"
    cfg.test_dataloader.dataset.reduce_zero_label = False
    assert submissions.label_values(cfg).tolist() == [0, 1]
    cfg.test_dataloader.dataset.pipeline[2]['values'] = {7: 0, 9: 1, 3: 255, 8: 0}
    assert submissions.label_values(cfg).tolist() == [7, 9]


def test_many_classes_have_wide_label_maps():
    values = np.arange(300)
    submissions.save_labels(Path('wide.png'), np.array([[0, 299]]), values)
    assert np.asarray(Image.open('wide.png')).tolist() == [[0, 299]]


# -- written -----------------------------------------------------------------------------------

def test_detections(detection, coco, capsys):
    """Of images without annotations, with the annotations' ids; scored as the test itself."""
    weights = weights_of(detection)
    run_test([str(detection), weights, '--work-dir', 'run', '--out', 'out.pkl'])
    truth = coco / 'annotations' / 'val.json'
    content = json.loads(truth.read_text())
    truth.write_text(json.dumps({key: content[key] for key in ('images', 'categories')}))
    message = refused(run_test, detection, weights, '--work-dir', 'x')
    assert 'no list of annotations' in message  # which a score needs
    run_test([str(detection), weights, '--work-dir', 'run2', '--format-only', 'out'])
    truth.write_text(json.dumps(content))

    rows = json.loads(Path('out/predictions.json').read_text())
    expected = pickle.loads(Path('out.pkl').read_bytes())
    assert len(rows) == sum(len(e['pred_instances']['scores']) for e in expected) > 2
    assert {row['category_id'] for row in rows} <= {7, 8}
    for sample in expected:
        found = sample['pred_instances']
        own = [row for row in rows if row['image_id'] == sample['img_id']]
        boxes = np.array([row['bbox'] for row in own])
        boxes[:, 2:] += boxes[:, :2]
        np.testing.assert_allclose(boxes, found['bboxes'].numpy(), atol=2e-3)
        for row, mask in zip(own, found['masks'], strict=True):
            assert (decode(row['segmentation']) == decode(mask)).all()
    masks = json.loads(Path('out/masks.json').read_text())
    assert len(masks) == len(rows) and not any('bbox' in row for row in masks)

    record = json.loads(next(Path('run').glob('*/test_record.json')).read_text())['metrics']
    for source in 'out', 'out/predictions.json', 'out.pkl':
        ours = scored(capsys, source, '--config', detection)
        for kind, theirs in ('box', 'bbox'), ('mask', 'segm'):
            assert ours[f'{kind} AP'] == pytest.approx(100 * record[f'coco/{theirs}_mAP'], abs=0.06)
    alone = scored(capsys, 'out/masks.json', '--config', detection)
    assert alone == {key: value for key, value in ours.items() if 'mask' in key}


def perfect_rows(coco, change=None) -> list[dict]:
    """The annotations as results, the second image's a little off."""
    content = COCO(coco / 'annotations' / 'val.json')
    rows = [dict(image_id=a['image_id'], category_id=a['category_id'], bbox=a['bbox'], score=0.9,
                 segmentation=a['segmentation']) for a in content.anns.values()]  # polygons
    rows[1]['bbox'] = [8, 8, 40, 32]  # IoU 0.8: right at 7 of 10 thresholds
    return rows


def test_the_right_scores(detection, coco, capsys):
    Path('mine.json').write_text(json.dumps(perfect_rows(coco)))
    found = scored(capsys, 'mine.json', '--config', detection)
    assert found['mask AP'] == 100 and found['box AP75'] == 100
    assert found['box AP'] == pytest.approx((100 + 70) / 2, abs=0.01)
    boxes = [{k: v for k, v in row.items() if k != 'segmentation'} for row in perfect_rows(coco)]
    Path('mine.json').write_text(json.dumps(boxes[:1]))  # an image without any
    found = scored(capsys, 'mine.json', '--config', detection)
    assert found == {'box AP': 50, 'box AP50': 50, 'box AP75': 50}
    Path('mine.json').write_text('[]')
    assert scored(capsys, 'mine.json', '--config', detection)['box AP'] == 0


def test_label_maps(segmentation, ade, capsys):
    """ADE20K's values, without the labels; scored as the test itself."""
    weights = weights_of(segmentation)
    run_test([str(segmentation), weights, '--work-dir', 'run', '--out', 'out.pkl'])
    (ade / 'labels/val').rename('away')
    refused(run_test, segmentation, weights, '--work-dir', 'x')
    run_test([str(segmentation), weights, '--work-dir', 'run2', '--format-only', 'out', '--tta'])
    shutil.rmtree('out')
    run_test([str(segmentation), weights, '--work-dir', 'run3', '--format-only', 'out'])
    Path('away').rename(ade / 'labels/val')
    for sample in pickle.loads(Path('out.pkl').read_bytes()):
        name = Path(sample['img_path']).stem
        np.testing.assert_array_equal(np.asarray(Image.open(f'out/labels/{name}.png')),
                                      sample['pred_sem_seg']['data'][0] + 1)
    record = json.loads(next(Path('run').glob('*/test_record.json')).read_text())['metrics']
    for source in 'out', 'out/labels', 'out.pkl':
        found = scored(capsys, source, '--config', segmentation)
        assert found['mIoU'] == pytest.approx(record['mIoU'], abs=0.006)
        assert found['aAcc'] == pytest.approx(record['aAcc'], abs=0.006)


def test_panoptic(tmp_path, monkeypatch, capsys):
    """Truth has 100; one segment less of the six has less, as PanopticQuality counts."""
    make_demo_data(tmp_path / 'data', train=1, val=2, size=64)
    monkeypatch.setenv('DEMO_ROOT', str(tmp_path / 'data'))
    config = ROOT / 'configs' / 'demo' / 'mask2former_panoptic_focalnet.py'
    annotations = tmp_path / 'data/coco/annotations'
    content = json.loads((annotations / 'panoptic_val2017.json').read_text())
    shutil.copytree(annotations / 'panoptic_val2017', 'mine')
    Path('mine.json').write_text(json.dumps(content))
    perfect = scored(capsys, 'mine.json', '--config', config)
    assert perfect['PQ'] == perfect['PQ things'] == perfect['RQ stuff'] == 100
    first = content['annotations'][0]
    stuff = [s for s in first['segments_info'] if s['id'] < 1000]
    first['segments_info'] = [s for s in first['segments_info'] if s not in stuff]
    content['annotations'].reverse()
    Path('mine.json').write_text(json.dumps(content))
    less = scored(capsys, 'mine.json', '--config', config)
    assert less['PQ things'] == 100 and less['PQ stuff'] < 70

    (Path('mine') / first['file_name']).write_bytes(b'')
    assert 'missing, truncated or not an image' in refused(score, 'mine.json', '--config', config)
    del content['annotations'][0]
    Path('mine.json').write_text(json.dumps(content))
    assert 'no segments of 1 of the 2 images' in refused(score, 'mine.json', '--config', config)


# -- refused -----------------------------------------------------------------------------------

@pytest.mark.parametrize('content, fragments', [
    ('{', ['cannot be read as JSON']),
    ('[1]', ["COCO's results format"]),
    ('{"annotations": [{"bbox": 1}]}', ["COCO's results format", 'panoptic results']),
    (dict(image_id=99), ['results of other images: 1 of 1', '99']),
    (dict(category_id=1), ['results of other categories: 1 of 1']),
    (dict(bbox=None), ['0 have a bbox, 0 a segmentation']),
    (dict(annotations=[]), ['holds panoptic segments, and the config scores none']),
])
def test_other_files(content, fragments, detection):
    row = dict(image_id=0, category_id=7, bbox=[1, 2, 3, 4], score=0.5)
    if isinstance(content, dict) and 'annotations' not in content:
        content = [{k: v for k, v in {**row, **content}.items() if v is not None}]
    Path('mine.json').write_text(content if isinstance(content, str) else json.dumps(content))
    message = refused(score, 'mine.json', '--config', detection)
    assert all(fragment in message for fragment in fragments), message


def test_other_folders(segmentation, detection, ade):
    assert 'there are no results nowhere' in refused(score, 'nowhere', '--config', segmentation)
    Path('mine').mkdir()
    assert 'mine holds no results' in refused(score, 'mine', '--config', segmentation)
    for value in 3, 0:
        Image.fromarray(np.full((64, 64), value, np.uint8)).save(f'mine/{value and 1}.png')
    message = refused(score, 'mine', '--config', segmentation)
    assert 'has the values' in message and 'the data set has 1 to 2' in message
    assert 'holds label maps, and the config scores none' in refused(
        score, 'mine', '--config', detection)
    Path('mine/1.png').unlink()
    assert 'no label map of 1 of the 2 images of the test_dataloader: 1.jpg' in refused(
        score, 'mine', '--config', segmentation)
    Image.fromarray(np.ones((9, 9), np.uint8)).save('mine/1.png')
    Image.fromarray(np.ones((64, 64), np.uint8)).save('mine/0.png')
    assert 'has the shape (9, 9)' in refused(score, 'mine', '--config', segmentation)
    Image.fromarray(np.ones((64, 64, 3), np.uint8)).save('mine/1.png')
    assert 'is a RGB image' in refused(score, 'mine', '--config', segmentation)


def test_classes_that_an_image_list_does_not_have(detection, coco):
    truth = coco / 'annotations' / 'val.json'
    truth.write_text(json.dumps(dict(json.loads(truth.read_text()), categories=[])))
    cfg = read_config(detection, {})
    with DefaultScope.overwrite_default_scope('mmdet'), pytest.raises(
            UserError, match='has no category disc, square'):
        submissions.without_ground_truth(cfg, 'out')
    # COCO's own: its ids are known.
    from mmdet.datasets import CocoDataset
    cfg.test_dataloader.dataset.metainfo = CocoDataset.METAINFO
    for head in 'bbox_head', 'mask_head':
        cfg.model.roi_head[head].num_classes = 80
    with DefaultScope.overwrite_default_scope('mmdet'):
        submissions.without_ground_truth(cfg, 'out')
        assert cfg.test_evaluator.ids[-1] == 90
        assert DATASETS.build(cfg.test_dataloader.dataset)[0]['inputs'].shape == (3, 64, 64)
