"""PQ: what is scored, and what is refused."""
import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmdet.datasets import CocoPanopticDataset
from mmengine import Config
from mmengine.registry import DATASETS, METRICS, DefaultScope

from downstream.data import panoptic
from downstream.errors import UserError

ROOT = Path(__file__).resolve().parents[3]
CATEGORIES = [dict(id=3, name='disc', isthing=1), dict(id=10, name='square', isthing=1),
              dict(id=7, name='grass', isthing=0)]
META = dict(classes=('disc', 'square', 'grass'), thing_classes=('disc', 'square'),
            stuff_classes=('grass', ))
VOID = 3  # the model's "nothing": one more than the classes


class Truth:
    """Ground truth of a few images, written in COCO's format."""

    def __init__(self, folder: Path):
        self.folder, self.maps = folder, {}
        self.content = dict(images=[], annotations=[], categories=CATEGORIES)
        (folder / 'maps').mkdir(parents=True)

    def add(self, ids: np.ndarray, categories: dict, crowds=()):
        """(H, W) segment ids and {id: category id}."""
        number = 1 + len(self.maps)
        self.maps[number] = ids, categories, crowds
        name = f'{number}.png'
        cv2.imwrite(str(self.folder / 'maps' / name), panoptic.id_to_rgb(ids)[..., ::-1])
        self.content['images'].append(dict(
            id=number, file_name=f'{number}.jpg', height=ids.shape[0], width=ids.shape[1]))
        self.content['annotations'].append(dict(
            image_id=number, file_name=name,
            segments_info=[dict(id=i, category_id=c, area=int((ids == i).sum()), bbox=[0, 0, 9, 9],
                                iscrowd=int(i in crowds)) for i, c in categories.items()]))
        (self.folder / 'panoptic.json').write_text(json.dumps(self.content))

    def score(self, predictions: dict, **kwargs):
        """PQ and the others, of {image id: (H, W) labels + 1000 * number}."""
        metric = METRICS.build(dict(
            type='PanopticQuality', ann_file=str(self.folder / 'panoptic.json'),
            seg_prefix=str(self.folder / 'maps'), **kwargs))
        metric.dataset_meta = META
        for number, seg in predictions.items():
            metric.process({}, [dict(
                img_id=number, img_path=f'anywhere/{number}.jpg', ori_shape=seg.shape,
                pred_panoptic_seg=dict(sem_seg=torch.from_numpy(seg)[None]))])
        return metric.evaluate(len(predictions))


def naive(truth: Truth, predictions: dict):
    """PQ by its definition, class by class and pair by pair."""
    labels = {category['id']: label for label, category in enumerate(CATEGORIES)}
    overlaps, spurious, missed = {0: [], 1: [], 2: []}, [0] * 3, [0] * 3
    for number, (ids, categories, crowds) in truth.maps.items():
        seg = predictions[number]
        void = ~np.isin(ids, list(categories))
        crowd = {label: np.zeros_like(void) for label in range(3)}
        for i in crowds:
            crowd[labels[categories[i]]] |= ids == i
        found = set()
        predicted = [p for p in np.unique(seg) if p % 1000 < 3]
        for i, category in categories.items():
            if i in crowds:
                continue
            match = None
            for p in predicted:
                if p % 1000 == labels[category]:
                    a, b = ids == i, (seg == p) & ~void
                    overlap = (a & b).sum() / (a | b).sum()
                    if overlap > 0.5:
                        match = p
                        overlaps[p % 1000].append(overlap)
            found.add(match)
            missed[labels[category]] += match is None
        for p in predicted:
            a = seg == p
            ignored = (a & (void | crowd[p % 1000])).sum() / a.sum()
            spurious[p % 1000] += p not in found and ignored <= 0.5
    pq = {}
    for label in range(3):
        total = len(overlaps[label]) + (spurious[label] + missed[label]) / 2
        if total:
            pq[label] = 100 * sum(overlaps[label]) / total
    return pq


@pytest.fixture
def truth(tmp_path):
    """Random rectangles over grass; some of it unlabelled, one segment a crowd."""
    truth, rng = Truth(tmp_path / 'truth'), np.random.default_rng(0)
    for _ in range(6):
        ids = np.full((40, 60), 500)
        ids[rng.integers(30, 40):] = 0  # unlabelled
        categories, crowds = {500: 7}, ()
        for k in range(1, 6):
            y, x = rng.integers(0, 30), rng.integers(0, 45)
            ids[y:y + rng.integers(6, 16), x:x + rng.integers(6, 20)] = 70000 * k
            categories[70000 * k] = int(rng.choice([3, 10]))
        kept = [i for i in categories if (ids == i).any()]
        crowds = kept[-1:]
        truth.add(ids, {i: categories[i] for i in kept}, crowds)
    return truth


def perfect(truth):
    labels = {category['id']: label for label, category in enumerate(CATEGORIES)}
    predictions = {}
    for number, (ids, categories, _) in truth.maps.items():
        seg = np.full(ids.shape, VOID, np.int32)
        for k, (i, category) in enumerate(categories.items(), 1):
            label = labels[category]
            seg[ids == i] = label + (1000 * k if label < 2 else 0)
        predictions[number] = seg
    return predictions


def test_truth_as_prediction(truth):
    scores = truth.score(perfect(truth))
    assert scores == {f'coco_panoptic/{name}{kind}': 100. for name in ('PQ', 'SQ', 'RQ')
                      for kind in ('', '_th', '_st')}


def test_score_is_the_definition(truth, tmp_path):
    """Shifted, partly of a wrong class, partly void: as the definition, things and stuff apart."""
    rng = np.random.default_rng(1)
    predictions = perfect(truth)
    for seg in predictions.values():
        seg[:] = np.roll(seg, 2, axis=1)
        for p in np.unique(seg):
            if rng.random() < 0.25:  # nothing, or the other kind of thing
                seg[seg == p] = VOID if rng.random() < 0.5 else p - p % 1000 + (p + 1) % 2
    expected = naive(truth, predictions)
    assert len({round(value) for value in expected.values()}) == 3  # else it would show little
    scores = truth.score(predictions, classwise=True, outfile_prefix=str(tmp_path / 'out/mine'))
    assert scores['coco_panoptic/PQ'] == pytest.approx(np.mean(list(expected.values())))
    assert scores['coco_panoptic/PQ_th'] == pytest.approx((expected[0] + expected[1]) / 2)
    assert scores['coco_panoptic/PQ_st'] == pytest.approx(expected[2])
    left = json.loads((tmp_path / 'out/mine.json').read_text())['annotations']
    assert len(left) == len(list((tmp_path / 'out/mine').glob('*.png'))) == 6
    ids = panoptic.rgb_to_id(cv2.imread(str(tmp_path / 'out/mine/1.png'))[..., ::-1])
    assert set(np.unique(ids)) - {0} == {s['id'] for s in left[0]['segments_info']}


def test_an_image_that_was_not_predicted(truth):
    predictions = perfect(truth)
    del predictions[4]
    with pytest.raises(UserError, match='cannot be scored .* id 4'):
        truth.score(predictions)


def test_images_of_one_name_in_two_folders(truth):
    """The prediction of one is not written over the other's."""
    metric = METRICS.build(dict(
        type='PanopticQuality', ann_file=str(truth.folder / 'panoptic.json'),
        seg_prefix=str(truth.folder / 'maps')))
    metric.dataset_meta = META
    predictions = perfect(truth)
    for number, seg in predictions.items():
        metric.process({}, [dict(img_id=number, img_path=f'{number}/same.jpg',
                                 pred_panoptic_seg=dict(sem_seg=torch.from_numpy(seg)[None]))])
    assert metric.evaluate(len(predictions))['coco_panoptic/PQ'] == 100


# COCO's category ids, which have holes: 80 kinds of things, then 53 of stuff.
THING_IDS = [i for i in range(1, 91) if i not in (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)]
STUFF_IDS = [92, 93, 95, 100, 107, 109, 112, 118, 119, 122, 125, 128, 130, 133, 138, 141, 144, 145,
             147, 148, 149, 151, 154, 155, 156, 159, 161, 166, 168, 171, 175, 176, 177, 178,
             180, 181, *range(184, 201)]


def test_coco_has_133_classes(tmp_path, monkeypatch):
    """Labels are 0..132, things first, in the order of COCO's ids: in data, heads and scores."""
    monkeypatch.setenv('COCO_ROOT', str(tmp_path))
    cfg = Config.fromfile(ROOT / 'configs' / 'mask2former_focalnet_l_coco_panoptic_100e.py')
    head = cfg.model.panoptic_head
    assert (head.num_things_classes, head.num_stuff_classes) == (len(THING_IDS), len(STUFF_IDS))
    assert head.loss_cls.class_weight == [1.] * 133 + [0.1]
    assert cfg.model.panoptic_fusion_head.num_things_classes == 80
    meta = CocoPanopticDataset.METAINFO
    assert meta['classes'][79:81] == ('toothbrush', 'banner')
    # one image with one segment of every class
    ids = THING_IDS + STUFF_IDS
    segments = [dict(id=i, category_id=i, bbox=[0, 0, 1, 1], area=1, iscrowd=0) for i in ids]
    path = tmp_path / 'annotations' / 'panoptic_val2017.json'
    path.parent.mkdir()
    path.write_text(json.dumps(dict(
        images=[dict(id=1, file_name='1.jpg', width=133, height=1)],
        annotations=[dict(image_id=1, file_name='1.png', segments_info=segments)],
        categories=[dict(id=i, name=name, isthing=int(i in THING_IDS))
                    for i, name in zip(ids, meta['classes'], strict=True)])))
    (path.parent / 'panoptic_val2017').mkdir()
    cv2.imwrite(str(path.parent / 'panoptic_val2017' / '1.png'),
                panoptic.id_to_rgb(np.array([ids]))[..., ::-1])

    with DefaultScope.overwrite_default_scope('mmdet'):
        dataset = DATASETS.build(dict(cfg.val_dataloader.dataset, pipeline=[]))
    labels = {s['id']: s['category'] for s in dataset.get_data_info(0)['segments_info']}
    assert labels == {i: label for label, i in enumerate(ids)}
    metric = METRICS.build(cfg.val_evaluator[0])
    metric.dataset_meta = dataset.metainfo
    seg = torch.arange(133)
    seg[:80] += 1000 * torch.arange(1, 81)
    metric.process({}, [dict(img_id=1, img_path='1.jpg',
                             pred_panoptic_seg=dict(sem_seg=seg[None, None]))])
    assert [s['category_id'] for s in metric.results[0]['segments_info']] == STUFF_IDS + THING_IDS
    assert metric.evaluate(1)['coco_panoptic/PQ'] == 100.
