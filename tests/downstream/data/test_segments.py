"""Panoptic data of one's own: what is put right, what is named, and what is scored."""
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from commands import command
from mmengine.config import Config
from mmengine.registry import DATASETS, METRICS, DefaultScope
from PIL import Image
from pycocotools import mask as rle

from downstream.data import checks
from downstream.data.coco import read_coco
from downstream.data.own import examine, use_data
from downstream.data.panoptic import id_to_rgb, rgb_to_id
from downstream.data.segments import PanopticCheck
from downstream.errors import UserError

ROOT = Path(__file__).resolve().parents[3]
REAL = ROOT.parent / 'shared' / 'data' / 'coco_panoptic_mini'
LEFT, RIGHT, TOP = 7, 300, 70000  # ids: one byte, two, three


def panoptic(folder, split='train', count=4):
    """Images of 48 x 32: grass, with two discs of 20 x 20 on it."""
    ids = np.full((32, 48), TOP)
    ids[4:24, 2:22], ids[4:24, 26:46] = LEFT, RIGHT
    content = dict(
        images=[dict(id=i, file_name=f'{i}.jpg', width=48, height=32) for i in range(count)],
        annotations=[dict(image_id=i, file_name=f'{i}.png', segments_info=[
            dict(id=TOP, category_id=9, area=736, bbox=[0, 0, 48, 32], iscrowd=0),
            dict(id=LEFT, category_id=5, area=400, bbox=[2, 4, 20, 20], iscrowd=0),
            dict(id=RIGHT, category_id=5, area=400, bbox=[26, 4, 20, 20], iscrowd=0)])
            for i in range(count)],
        categories=[dict(id=9, name='grass', isthing=0), dict(id=5, name='disc', isthing=1)])
    for i in range(count):
        draw(folder, i, ids, split)
        (folder / split).mkdir(exist_ok=True)
        Image.new('RGB', (48, 32)).save(folder / split / f'{i}.jpg')
    save(folder, content, split)
    return content


def draw(folder, number, ids, split='train'):
    path = folder / f'annotations/panoptic_{split}/{number}.png'
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(id_to_rgb(np.asarray(ids))).save(path)


def save(folder, content, split='train'):
    (folder / f'annotations/panoptic_{split}.json').write_text(json.dumps(content))


def use(tmp_path, name='mask2former_focalnet_l_coco_panoptic_100e', **kwargs):
    cfg = Config.fromfile(ROOT / 'configs' / f'{name}.py')
    cfg.work_dir = str(tmp_path / 'work')
    return cfg, use_data(cfg, str(tmp_path / 'set'), **kwargs)


def built(cfg, split):
    with DefaultScope.overwrite_default_scope('mmdet'):
        return DATASETS.build(cfg[f'{split}_dataloader'].dataset)


def check(tmp_path, **kwargs):
    root = tmp_path / 'set'
    path = root / 'annotations/panoptic_train.json'
    return PanopticCheck(read_coco(path, panoptic=True), path, root / 'train',
                         root / 'annotations/panoptic_train', **kwargs)


def said(checked):
    return '\n'.join([*checked.notes, *map(str, checked.findings)])


def test_right_data(tmp_path):
    panoptic(tmp_path / 'set')
    panoptic(tmp_path / 'set', 'val')
    cfg, notes = use(tmp_path)
    assert notes[-1] == '1 kinds of things, 1 of stuff' and len(notes) == 2
    for split in ('train', 'val', 'test'):
        dataset = built(cfg, split)
        assert dataset.metainfo['classes'] == ('disc', 'grass')
        if split == 'train':
            continue
        sample = dataset[0]['data_samples']
        assert sample.gt_instances.labels.tolist() == [0, 0]
        assert sample.gt_sem_seg.sem_seg.unique().tolist() == [0, 1]
    checks.check_data(cfg, 'train', 'val', 'test')


def test_what_is_left_out_is_found_in_the_maps(tmp_path):
    content = panoptic(tmp_path / 'set')
    right = json.loads(json.dumps(content['annotations']))
    for annotation, image in zip(content['annotations'], content['images'], strict=True):
        del annotation['file_name'], image['width'], image['height']
        for segment in annotation['segments_info']:
            del segment['area'], segment['bbox'], segment['iscrowd']
    content['annotations'][1]['segments_info'][0].update(area=float('nan'), bbox=[0, 0, 0, 0])
    content['annotations'][2]['file_name'] = 'C:\\maps\\2.png'
    save(tmp_path / 'set', content)
    checked = check(tmp_path, most=1)  # those without areas are decoded all the same
    assert checked.findings == []
    for text in ('3 annotations have no file_name', '12 segments have no iscrowd: taken as 0',
                 '12 segments have no area or box: computed', '1 of 4 maps are found by the last'):
        assert text in said(checked)
    for annotation, before in zip(checked.annotations, right, strict=True):
        assert annotation['file_name'] == before['file_name']
        for segment, other in zip(annotation['segments_info'], before['segments_info'],
                                  strict=True):
            assert {key: segment[key] for key in other} == other


@pytest.mark.parametrize('key', ['area', 'bbox'])
def test_areas_and_boxes_that_are_none(tmp_path, key):
    content = panoptic(tmp_path / 'set', count=1)
    for value in (None, True, 0, -5, 'abc', [], [1], {'a': 1}, float('nan'), float('inf'), 10**400,
                  [0, 0, 10**400, 5], [0, 0, float('nan'), 5], [0, 0, 0.5, 5], ['0', '9', 9, 9]):
        segments(content)[1][key] = value
        save(tmp_path / 'set', content)
        segment = check(tmp_path).annotations[0]['segments_info'][1]
        assert (segment['area'], segment['bbox']) == (400, [2, 4, 20, 20])


def test_maps_of_images_with_any_suffix(tmp_path):
    """mmdet looks for 0.jpeg's map under 0.jpeg."""
    content = panoptic(tmp_path / 'set')
    for i, suffix in enumerate(('jpeg', 'JPG', 'png')):
        Image.new('RGB', (48, 32)).save(tmp_path / f'set/train/{i}.{suffix}')
        (tmp_path / f'set/train/{i}.jpg').unlink()
        content['images'][i]['file_name'] = f'{i}.{suffix}'
    (tmp_path / 'set/annotations/panoptic_train/3.png').rename(
        tmp_path / 'set/annotations/panoptic_train/three.png')
    content['annotations'][3]['file_name'] = 'three.png'
    save(tmp_path / 'set', content)
    cfg, _ = use(tmp_path)
    checks.check_data(cfg, 'train')
    assert all(len(built(cfg, 'train')[i]['data_samples'].gt_instances) for i in range(4))


def segments(content, number=0):
    return content['annotations'][number]['segments_info']


def everywhere(content, **entries):
    for annotation in content['annotations']:
        for segment in annotation['segments_info']:
            segment.update(entries)


@pytest.mark.parametrize(('spoil', 'message'), [
    (lambda c: [segments(c, i).pop() for i in range(4)],
     r'4 of 4 panoptic maps have ids that their segments_info lacks \(0.png: 300'),
    (lambda c: segments(c)[0].update(id=LEFT), 'have the id of another one .*0.png: 7'),
    (lambda c: segments(c)[0].update(id=0), 'an id that no pixel can have .*0.png: 0'),
    (lambda c: segments(c)[0].update(id='7'), 'an id that no pixel can have'),
    (lambda c: segments(c)[0].update(id=None), 'id of entry 0 of all segments_info is None'),
    (lambda c: segments(c)[0].update(category_id=4), r'categories that the file does .*ids \[4\]'),
    (lambda c: segments(c)[0].update(iscrowd='no'), 'iscrowd that is neither 0 nor 1'),
    (lambda c: c['annotations'][0].update(segments_info=None), 'segments_info of entry 0 .* None'),
    (lambda c: c['annotations'][0].update(file_name='no.png'), 'maps are not in .*no.png'),
    (lambda c: c['annotations'].append(dict(c['annotations'][0])), 'have several annotations'),
    (lambda c: c.update(annotations=c['annotations'][:1]), '3 of 4 images have no annotation'),
    (lambda c: c['categories'][0].pop('isthing'), "1 of 2 .*whether they are things .*'grass'"),
    (lambda c: c['categories'][0].update(isthing='no'), "whether they are things .*'grass'"),
    (lambda c: c['categories'][1].update(isthing=0), 'no category is a thing'),
    (lambda c: c['categories'][1].update(name='grass'), "several classes are called 'grass'"),
    (lambda c: c['categories'][1].update(id=9), 'several categories of the id 9'),
    (lambda c: c.update(annotations=[dict(image_id=0, category_id=1, bbox=[1, 1, 2, 2])]),
     'has no segments_info; it looks like a file of boxes or masks'),
    (lambda c: [annotation.update(segments_info=[dict(segment, id=segment['id'] + 1) for segment in
                                                  annotation['segments_info']])
                for annotation in c['annotations']], '12 of 12 segments are not in their map'),
])
def test_mistakes_that_stop(tmp_path, spoil, message):
    content = panoptic(tmp_path / 'set')
    spoil(content)
    save(tmp_path / 'set', content)
    with pytest.raises(UserError, match=message):
        use(tmp_path)


@pytest.mark.parametrize(('spoil', 'message', 'left'), [
    (lambda c: segments(c).pop(),
     r'1 of 4 panoptic maps have ids that their segments_info lacks \(0.png: 300\); .*unlabelled',
     11),
    (lambda c: segments(c).append(dict(segments(c)[0], id=5)),
     r'1 of 13 segments are not in their map \(0.png: 5\); they are not used', 12),
    (lambda c: segments(c).clear(), r'1 of 4 panoptic maps have no segment \(file_name 0.png', 9),
    (lambda c: c['annotations'].pop(), r'1 of 4 images have no annotation \(file_name 3.jpg', 9),
    (lambda c: c['annotations'][0].update(image_id=77),
     r'1 of 4 annotations are of images that the file does not list \(image_id 77\)', 9),
])
def test_slips_are_counted_and_left_out(tmp_path, spoil, message, left):
    content = panoptic(tmp_path / 'set')
    spoil(content)
    save(tmp_path / 'set', content)
    _, notes = use(tmp_path)
    assert re.search(message, '\n'.join(notes))
    prepared = json.loads((tmp_path / 'work/data/train.json').read_text())
    assert sum(len(a['segments_info']) for a in prepared['annotations']) == left
    assert len(prepared['images']) == len(prepared['annotations'])


def test_maps_that_are_no_maps(tmp_path):
    panoptic(tmp_path / 'set')
    maps = tmp_path / 'set/annotations/panoptic_train'
    (maps / '0.png').write_bytes((maps / '0.png').read_bytes()[:60])
    (maps / '1.png').write_bytes(b'')
    draw(tmp_path / 'set', 2, np.full((48, 32), LEFT))
    text = said(check(tmp_path))
    assert '2 of 4 panoptic maps cannot be read (file_name 0.png, file_name 1.png)' in text
    assert '1 of 4 panoptic maps have another size than their images (file_name 2.png)' in text


@pytest.mark.parametrize(('change', 'message'), [
    (lambda image: image[..., ::-1], 'written blue first'),
    (lambda image: np.repeat(image[..., :1], 3, -1), 'the maps are grey'),
])
def test_maps_of_another_encoding(tmp_path, change, message):
    content = panoptic(tmp_path / 'set')
    for i in range(4):
        path = tmp_path / f'set/annotations/panoptic_train/{i}.png'
        image = np.asarray(Image.open(path)).copy()
        image[rgb_to_id(image) == TOP] = 3, 0, 0
        image[rgb_to_id(image) == RIGHT] = 4, 0, 0
        Image.fromarray(change(image)).save(path)
        for segment, number in zip(segments(content, i), (3, 7, 4), strict=True):
            segment['id'] = number
    save(tmp_path / 'set', content)
    assert message in said(check(tmp_path))


def test_only_so_many_maps_are_read(tmp_path):
    panoptic(tmp_path / 'set')
    for i in range(4):
        draw(tmp_path / 'set', i, np.full((32, 48), 5))
    assert '2 of 2 panoptic maps have ids' in said(check(tmp_path, most=2))
    assert '4 of 4 panoptic maps have ids' in said(check(tmp_path, most=None))


def test_splits_have_the_same_classes(tmp_path):
    panoptic(tmp_path / 'set')
    content = panoptic(tmp_path / 'set', 'val')
    content['categories'].reverse()
    save(tmp_path / 'set', content, 'val')
    cfg, _ = use(tmp_path)
    assert built(cfg, 'val').metainfo['classes'] == ('disc', 'grass')
    everywhere(content, category_id=9)
    content['categories'] = [dict(id=9, name='grass', isthing=0)]
    with pytest.raises(UserError, match='no category is a thing'):  # of its own, without train
        PanopticCheck(json.loads(json.dumps(content)), Path('x'), tmp_path / 'set/val',
                      tmp_path / 'set/annotations/panoptic_val')
    save(tmp_path / 'set', content, 'val')
    cfg, _ = use(tmp_path)  # val shows no disc
    assert built(cfg, 'val').metainfo['classes'] == ('disc', 'grass')
    content['categories'] = [dict(id=9, name='grass', isthing=1)]
    save(tmp_path / 'set', content, 'val')
    with pytest.raises(UserError, match='grass is a thing here, and not so in another split'):
        use(tmp_path)
    content['categories'] = [dict(id=9, name='sand', isthing=0)]
    save(tmp_path / 'set', content, 'val')
    with pytest.raises(UserError, match='has the categories sand, which the classes'):
        use(tmp_path)


def test_images_held_out(tmp_path):
    panoptic(tmp_path / 'set')
    cfg, _ = use(tmp_path, val_split=0.5)
    assert len(built(cfg, 'train')) + len(built(cfg, 'val')) == 4
    assert {metric.type for metric in cfg.val_evaluator} == {'PanopticQuality', 'CocoMetric'}


def perfect(cfg):
    """What a model that makes no mistake predicts: (PanopticQuality's, CocoMetric's scores)."""
    from mmdet.structures.mask import encode_mask_results
    scores = []
    dataset = built(cfg, 'test')
    for metric in cfg.test_evaluator:
        metric = METRICS.build(dict(metric, _scope_='mmdet'))
        metric.dataset_meta = dataset.metainfo
        for i in range(len(dataset)):
            sample = dataset[i]['data_samples']
            truth = sample.gt_instances
            masks = truth.masks.to_ndarray().astype(bool)
            seg = sample.gt_sem_seg.sem_seg.clone().long()
            for number, mask in enumerate(masks, 1):
                seg[0][mask] += 1000 * number
            boxes = truth.bboxes.tensor if hasattr(truth.bboxes, 'tensor') else truth.bboxes
            metric.process({}, [dict(
                sample.metainfo, pred_panoptic_seg=dict(sem_seg=seg),
                pred_instances=dict(
                    bboxes=boxes, labels=truth.labels, scores=boxes.new_ones(len(boxes)),
                    masks=encode_mask_results(masks)))])
        scores.append(metric.evaluate(len(dataset)))
    return scores


def test_true_predictions_have_perfect_scores(tmp_path):
    """Boxes and masks are scored with instances made from the maps."""
    panoptic(tmp_path / 'set')
    cfg, _ = use(tmp_path, val_split=0.5)
    cfg.test_dataloader.dataset.pipeline = [
        step for step in cfg.test_dataloader.dataset.pipeline if step.type != 'Resize']
    for step in cfg.test_dataloader.dataset.pipeline:
        if step.type == 'PackDetInputs':
            step.meta_keys = ('img_id', 'img_path', 'ori_shape', 'img_shape')
    quality, boxes = perfect(cfg)
    assert quality['coco_panoptic/PQ'] == 100
    assert boxes['coco/bbox_mAP'] == boxes['coco/segm_mAP'] == 1


def test_check_data(tmp_path, capsys):
    content = panoptic(tmp_path / 'set')
    tool = command('check_data').main
    tool([str(tmp_path / 'set'), '--kind', 'panoptic'])
    out = capsys.readouterr().out
    assert 'train: 4 images, 12 segments' in out and 'nothing is wrong' in out
    assert 'mask2former_focalnet_l_coco_panoptic_100e.py --data' in out
    assert re.search(r'disc +8\n +grass +4 stuff\n', out)
    segments(content).pop()
    save(tmp_path / 'set', content)
    tool([str(tmp_path / 'set'), '--kind', 'panoptic'])
    assert 'warning: ' in capsys.readouterr().out
    finding, = examine(str(tmp_path / 'set'), 'panoptic').findings
    assert not finding.error and finding.images == ['0.jpg']


@pytest.mark.skipif(not REAL.is_dir(), reason='needs a sample of COCO panoptic')
def test_real_maps_give_coco_s_own_areas_and_boxes(tmp_path):
    shutil.copytree(REAL, tmp_path / 'set')
    for split in ('train', 'val'):
        path = tmp_path / f'set/annotations/panoptic_{split}2017.json'
        content = json.loads(path.read_text())
        right = {segment['id']: (segment['area'], segment['bbox'])
                 for segment in json.loads(path.read_text())['annotations'][0]['segments_info']}
        for annotation in content['annotations']:
            for segment in annotation['segments_info']:
                del segment['area'], segment['bbox']
        checked = PanopticCheck(content, path, tmp_path / f'set/{split}2017',
                                path.with_suffix(''))
        assert checked.findings == []
        first = checked.annotations[0]['segments_info']
        assert {segment['id']: (segment['area'], segment['bbox']) for segment in first} == right
        for found in checked.instances()['annotations']:
            assert rle.area(found['segmentation']) == found['area']
            assert rle.toBbox(found['segmentation']).tolist() == found['bbox']
