"""A perfect model scores 1.0: ground truth, fed through the experiments' own test data and metrics.

On generated data always; on COCO and ADE20K where there are some.
"""
import os
from pathlib import Path

import pytest
import torch
from mmengine import Config
from mmengine.evaluator import Evaluator
from mmengine.registry import DATASETS, DefaultScope
from mmengine.structures import InstanceData, PixelData
from mmengine.utils import import_modules_from_strings

from downstream.data.generated import make_demo_data

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope='module')
def demo_root(tmp_path_factory):
    root = tmp_path_factory.mktemp('demo')
    make_demo_data(root, train=1, val=12, size=96)
    return root


def perfect_instances(sample):
    """Ground truth as a detector would predict it, crowds left out as they can't be matched."""
    truth = sample.gt_instances
    sample.pred_instances = InstanceData(
        bboxes=truth.bboxes.tensor, labels=truth.labels,
        scores=torch.ones(len(truth.labels)),
        masks=torch.from_numpy(truth.masks.to_ndarray()).bool())


def perfect_labels(sample):
    labels = sample.gt_sem_seg.data.clone()
    labels[labels == 255] = 0  # whatever is predicted where the truth is unknown
    sample.pred_sem_seg = PixelData(data=labels)


def perfect_panoptic(sample):
    """Ground truth as a panoptic model would predict it: label + 1000 x the number of a thing."""
    seg = sample.gt_sem_seg.sem_seg.clone().long()
    masks = torch.from_numpy(sample.gt_instances.masks.to_ndarray()).bool()
    for number, (label, mask) in enumerate(zip(sample.gt_instances.labels, masks, strict=True), 1):
        seg[0][mask] = label + 1000 * number
    sample.pred_panoptic_seg = PixelData(sem_seg=seg)


def score(name, perfect, change=None):
    """The metrics of an experiment's test set for predictions that ``perfect`` makes."""
    cfg = Config.fromfile(ROOT / 'configs' / f'{name}.py')
    if change:
        change(cfg)
    import_modules_from_strings(**cfg.custom_imports)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        dataset = DATASETS.build(dict(cfg.test_dataloader.dataset, _scope_=cfg.default_scope))
        evaluator = Evaluator(cfg.test_evaluator)
        evaluator.dataset_meta = dataset.metainfo
        for i in range(len(dataset)):
            sample = dataset[i]['data_samples']
            perfect(sample)
            evaluator.process([sample])
        return evaluator.evaluate(len(dataset))


def assert_perfect_detection(metrics):
    for kind in ('bbox', 'segm'):
        for threshold in ('', '_50', '_75'):
            assert metrics[f'coco/{kind}_mAP{threshold}'] == pytest.approx(1., abs=1e-3)


def test_perfect_detector_on_generated_data(demo_root, monkeypatch):
    monkeypatch.setenv('DEMO_ROOT', str(demo_root))
    assert_perfect_detection(score('demo/maskrcnn_focalnet', perfect_instances))


def test_perfect_segmentor_on_generated_data(demo_root, monkeypatch):
    monkeypatch.setenv('DEMO_ROOT', str(demo_root))
    metrics = score('demo/upernet_focalnet', perfect_labels)
    assert metrics['mIoU'] == metrics['mAcc'] == metrics['aAcc'] == 100.


def assert_perfect_panoptic(metrics):
    assert metrics == {f'coco_panoptic/{name}{kind}': 100. for name in ('PQ', 'SQ', 'RQ')
                       for kind in ('', '_th', '_st')}


def test_perfect_panoptic_on_generated_data(demo_root, monkeypatch):
    monkeypatch.setenv('DEMO_ROOT', str(demo_root))
    assert_perfect_panoptic(score('demo/mask2former_panoptic_focalnet', perfect_panoptic))


def test_imperfect_predictions_score_less(demo_root, monkeypatch):
    """The same path tells a wrong class and a shifted box from right ones."""
    monkeypatch.setenv('DEMO_ROOT', str(demo_root))

    def wrong(sample):
        perfect_instances(sample)
        sample.pred_instances.bboxes[:, :2] -= 10
        sample.pred_instances.labels = (sample.pred_instances.labels + 1) % 4

    metrics = score('demo/maskrcnn_focalnet', wrong)
    assert metrics['coco/bbox_mAP_75'] < 0.1 and metrics['coco/segm_mAP'] < 0.2


@pytest.fixture
def real(monkeypatch):
    """Calling it makes a variable name the data set that has a file, or skips the test.

    That is what the variable names already, else a small set in ../shared/data. Each test has its
    own: a COCO of instances need not have panoptic maps.
    """
    def name(variable, small, file):
        candidates = [ROOT.parent / 'shared' / 'data' / small]
        if variable in os.environ:
            candidates.insert(0, Path(os.environ[variable]))
        root = next((root for root in candidates if (root / file).exists()), None)
        if root is None:
            pytest.skip(f'there is no {file} in {" or ".join(map(str, candidates))}; '
                        f'{variable} may name the folder that has it')
        monkeypatch.setenv(variable, str(root))

    return name


def test_perfect_detector_on_coco(real):
    real('COCO_ROOT', 'coco_mini', 'annotations/instances_val2017.json')
    metrics = score('maskrcnn_focalnet_t_1x', perfect_instances)
    for kind in ('bbox', 'segm'):
        assert metrics[f'coco/{kind}_mAP'] == pytest.approx(1., abs=2e-3)


def test_perfect_panoptic_on_coco(real):
    def only_panoptic(cfg):
        cfg.test_evaluator = cfg.test_evaluator[0]

    real('COCO_ROOT', 'coco_panoptic_mini', 'annotations/panoptic_val2017.json')
    assert_perfect_panoptic(score(
        'mask2former_focalnet_l_coco_panoptic_100e', perfect_panoptic, only_panoptic))


def test_perfect_segmentor_on_ade20k(real):
    real('ADE20K_ROOT', 'ade_mini', 'images/validation')
    assert score('upernet_focalnet_t_160k', perfect_labels)['mIoU'] == 100.
