"""1, 2 and 4 processes (gloo): the same training, scores and resumed runs. DRILL=1 runs these.

Models without batch statistics, and losses that are means over as much in each process: of others
the sum over processes is not that of one, by their nature (docs/distributed.md).
"""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import HOOKS, SEGMENTATION, save_image

ROOT = Path(__file__).resolve().parents[1]
STEPS, BATCH = 6, 4  # of all processes together
pytestmark = pytest.mark.skipif('DRILL' not in os.environ, reason='DRILL=1: takes many minutes')

SEGMENTATION_CONFIG = SEGMENTATION.replace("type='SyncBN'", "type='GN', num_groups=2") + (
    HOOKS.format('Seg')) + '''
train_cfg.update(max_iters=6, val_interval=6)
optim_wrapper = dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=0.1))
model['decode_head'].update(dropout_ratio=0.)
pipeline.insert(3, dict(type='RandomFlip', prob=0.5))
'''
DETECTION_CONFIG = '''
_base_ = {detr!r}
model = dict(bbox_head=dict(sync_cls_avg_factor=True))
optim_wrapper = dict(optimizer=dict(lr=4e-3, eps=1e-3))
train_cfg = dict(max_epochs=2, val_interval=2)
param_scheduler = [dict(type='LinearLR', start_factor=0.1, by_epoch=False, begin=0, end=6)]
train_dataloader = dict(num_workers=1, persistent_workers=True)
default_hooks = dict(checkpoint=dict(interval=1), logger=dict(interval=1))
'''


def run(count, tool, *args, status=0):
    """A tool in so many processes; what it said."""
    start = [sys.executable, ROOT / 'tools' / f'{tool}.py', *args] if count == 1 else [
        ROOT / 'tools' / f'dist_{tool}.sh', *args[:1 if tool == 'train' else 2], count,
        *args[1 if tool == 'train' else 2:]]
    done = subprocess.run(
        list(map(str, start)), capture_output=True, text=True, timeout=600,
        env={**os.environ, 'PYTHON': sys.executable, 'OMP_NUM_THREADS': '1'})
    assert done.returncode == status, done.stderr[-3000:]
    return done.stdout + done.stderr


def steps(work_dir):
    """(iteration, loss, learning rate) of each step that the newest log of a run has."""
    path = sorted(Path(work_dir).glob('*/vis_data/scalars.json'))[-1]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [(line['step'], line['loss'], line['lr']) for line in lines if 'loss' in line]


def scores(work_dir):
    record = sorted(Path(work_dir).glob('*/test_record.json'))[-1]
    return json.loads(record.read_text())['metrics']


def weights(path):
    return torch.load(path, weights_only=True)['state_dict']


def worst(ours, theirs) -> float:
    """The largest difference of two models' weights, in parts of the largest value of its tensor.
    """
    return max(((ours[name] - value).abs().max() / (value.abs().max() + 1e-12)).item()
               for name, value in theirs.items() if value.is_floating_point())


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    from downstream.data.generated import make_demo_data
    folder = tmp_path_factory.mktemp('several')
    import numpy as np
    from PIL import Image
    rng = np.random.default_rng(0)
    for split, number in (('train', 10), ('val', 5), ('few', 3)):
        for index in range(number):
            save_image(folder / 'ade/images' / split / f'{index}.jpg', rng)
            path = folder / 'ade/labels' / split / f'{index}.png'
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(1, 3, (64, 64)).astype(np.uint8)).save(path)
    make_demo_data(folder / 'data', train=8, val=5, size=96)
    make_demo_data(folder / 'few', train=8, val=3, size=96)
    (folder / 'fcn.py').write_text(SEGMENTATION_CONFIG)
    detr = str(ROOT / 'configs/demo/memorise_detr_focalnet.py')
    (folder / 'detr.py').write_text(DETECTION_CONFIG.format(detr=detr))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv('ADE20K_ROOT', str(folder / 'ade'))
        patch.setenv('DEMO_ROOT', str(folder / 'data'))
        for name in ('fcn', 'detr'):
            for count in (1, 2, 4):
                run(count, 'train', f'{name}.py', '--work-dir', f'{name}{count}', '--cfg-options',
                    f'train_dataloader.batch_size={BATCH // count}')
        yield folder


LAST = dict(fcn='iter_6.pth', detr='epoch_2.pth')
MIDDLE = dict(fcn='iter_4.pth', detr='epoch_1.pth')


@pytest.mark.parametrize('count', [2, 4])
@pytest.mark.parametrize('name', ['fcn', 'detr'])
def test_training(folder, name, count):
    one, more = steps(f'{name}1'), steps(f'{name}{count}')
    assert [(step, lr) for step, _, lr in more] == [(step, lr) for step, _, lr in one]
    difference = worst(weights(f'{name}{count}/{LAST[name]}'), weights(f'{name}1/{LAST[name]}'))
    print(f'\n{name}, {count} processes: weights differ by {difference:.1e}, of', len(one), 'steps')
    assert difference < 1e-4


@pytest.mark.parametrize('count', [1, 2, 4])
@pytest.mark.parametrize('name', ['fcn', 'detr'])
def test_resumed_with_another_number(folder, name, count):
    """From the checkpoint that 2 (or 1) processes left in the middle."""
    begun = 1 if count == 2 else 2
    out = f'{name}_{begun}_then_{count}'
    run(count, 'train', f'{name}.py', '--work-dir', out, '--resume',
        f'{name}{begun}/{MIDDLE[name]}', '--cfg-options',
        f'train_dataloader.batch_size={BATCH // count}')
    done = [(step, lr) for step, _, lr in steps(f'{name}1')]
    after = [(step, lr) for step, _, lr in steps(out)]
    assert after == done[-len(after):] and len(after) in (2, STEPS)
    difference = worst(weights(f'{out}/{LAST[name]}'), weights(f'{name}1/{LAST[name]}'))
    print(f'\n{out}: weights differ by {difference:.1e}; steps', [step for step, _ in after])
    assert difference < 1e-4


@pytest.mark.parametrize('few', [False, True])
@pytest.mark.parametrize('name', ['fcn', 'detr'])
def test_scores(folder, name, few, monkeypatch):
    """5 images, and 3, which are fewer than 4 processes: none counts twice."""
    options = []
    if few:
        monkeypatch.setenv('DEMO_ROOT', str(folder / 'few'))
        if name == 'fcn':
            options = ['--cfg-options', 'test_dataloader.dataset.data_prefix.img_path=images/few',
                       'test_dataloader.dataset.data_prefix.seg_map_path=labels/few']
    found = {}
    for count in (1, 2, 4):
        run(count, 'test', f'{name}.py', f'{name}1/{LAST[name]}', '--work-dir',
            f'test_{name}{count}{few}', '--out', f'test_{name}{count}{few}.pkl', *options)
        found[count] = scores(f'test_{name}{count}{few}')
    print(f'\n{name}:', found)
    assert found[2] == found[1] and found[4] == found[1]


# Predictions made of the ground truth, of each image worse by another amount: an image that counts
# twice would change the scores. Arguments: config, 'boxes' or 'segments'.
SCORING = '''
import sys
import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import DefaultSampler
from mmengine.registry import DATASETS, METRICS, init_default_scope
import downstream
from downstream.training.launching import fit_launcher, orderly_exit, read_config


@orderly_exit()
def main():
    cfg = read_config(sys.argv[1], {})
    cfg.launcher = sys.argv[3]
    fit_launcher(cfg)
    init_default_scope('mmdet')
    data = DATASETS.build(cfg.val_dataloader.dataset)
    metric = METRICS.build(cfg.val_evaluator if sys.argv[2] == 'segments' else
                           {**cfg.val_evaluator, 'metric': 'bbox'})
    metric.dataset_meta = data.metainfo
    for index in DefaultSampler(data, shuffle=False):
        info = data.get_data_info(index)
        sample = dict(img_id=info['img_id'], img_path=info['img_path'],
                      ori_shape=(info['height'], info['width']))
        if sys.argv[2] == 'segments':
            labels = data[index]['data_samples'].gt_sem_seg.sem_seg[0].numpy()
            labels = np.roll(labels, 3 * index, 0).astype(np.int64)
            labels[labels == 255] = len(data.metainfo['classes'])
            sample['pred_panoptic_seg'] = dict(sem_seg=torch.from_numpy(labels)[None])
        else:
            boxes = torch.tensor([each['bbox'] for each in info['instances']])
            sample['pred_instances'] = dict(
                bboxes=boxes + 2 * index, scores=torch.linspace(0.9, 0.5, len(boxes)) - index / 20,
                labels=torch.tensor([each['bbox_label'] for each in info['instances']]))
        metric.process({}, [sample])
    scores = metric.evaluate(len(data))
    if torch.distributed.is_initialized() and torch.distributed.get_rank():
        return
    print('scores', {key: float(value) for key, value in scores.items()})


main()
'''


@pytest.mark.parametrize('kind', ['boxes', 'segments'])
@pytest.mark.parametrize('data', ['data', 'few'])
def test_no_image_counts_twice(tmp_path, kind, data):
    from downstream.data.generated import make_demo_data
    make_demo_data(tmp_path / data, train=8, val=dict(data=5, few=3)[data], size=96)
    (tmp_path / 'scoring.py').write_text(SCORING)
    demo = 'mask2former_panoptic_focalnet' if kind == 'segments' else 'maskrcnn_focalnet'
    found = []
    for count in (1, 2, 4):
        start = [] if count == 1 else [ROOT / 'tools' / 'launch.py', count]
        done = subprocess.run(
            [*map(str, [sys.executable, *start, 'scoring.py',
                        ROOT / 'configs' / 'demo' / f'{demo}.py', kind,
                        'none' if count == 1 else 'pytorch'])],
            cwd=tmp_path, capture_output=True, text=True, env={
                **os.environ, 'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1',
                'DEMO_ROOT': str(tmp_path / data)})
        assert done.returncode == 0, done.stderr[-3000:]
        found.append(done.stdout.split('scores ')[1].splitlines()[0])
    print(kind, data, found[0])
    first = next(iter(json.loads(found[0].replace("'", '"')).values()))
    assert 0 < first < 100 and found[1] == found[0] == found[2]
