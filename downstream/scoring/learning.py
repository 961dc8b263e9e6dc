"""Does every family learn in every kind of head? Small versions, generated data, a table.

Each run goes through tools/train.py, for a few epochs, and is scored on held-out images; only DETR
memorises eight images and is scored on those.
"""
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mmengine.config import Config

from ..data.generated import make_demo_data
from ..data.subset import write_subset
from ..experiments import CONFIGS, ROOT

OUT = ROOT / 'work_dirs' / 'learning'
# Method: its demo config, epochs, its score and what that has to reach. (An untrained model scores
# next to 0 or, in mIoU, at most 14, one of seven classes everywhere.)
METHODS = {
    'maskrcnn': ('maskrcnn_focalnet', 3, 'coco/bbox_mAP', 0.30),
    'retinanet': ('retinanet_focalnet', 3, 'coco/bbox_mAP', 0.30),
    'upernet': ('upernet_focalnet', 8, 'mIoU', 70.),
    'detr': ('memorise_detr_focalnet', None, 'coco/bbox_mAP', 0.50),
    'cascade': ('cascade_maskrcnn_focalnet', 3, 'coco/bbox_mAP', 0.30),
    'atss': ('atss_focalnet', 3, 'coco/bbox_mAP', 0.30),
    'sparsercnn': ('sparsercnn_focalnet', 12, 'coco/bbox_mAP', 0.30),
    'dino': ('dino_focalnet', 6, 'coco/bbox_mAP', 0.30),
    'mask2former_semantic': ('mask2former_semantic_focalnet', 6, 'mIoU', 70.),
    'mask2former_panoptic': ('mask2former_panoptic_focalnet', 6, 'coco_panoptic/PQ', 40.),
}
EVERY_FAMILY = 'maskrcnn', 'retinanet', 'upernet', 'detr'
THREE_MAPS = 'retinanet', 'atss', 'dino'  # of strides 8 to 32


def make_data():
    """What the runs train on: the generated images, and the eight that DETR memorises."""
    make_demo_data(OUT / 'data')
    few = OUT / 'few'
    if not few.exists():
        write_subset(OUT / 'data' / 'coco', few / 'coco', images=8, min_area=0)


def compose(method: str, family: dict) -> Config:
    """A method's demo config with another family's backbone in it."""
    name, epochs, *_ = METHODS[method]
    os.environ['DEMO_ROOT'] = str(OUT / ('few' if method == 'detr' else 'data'))
    cfg = Config.fromfile(CONFIGS / 'demo' / f'{name}.py', import_custom_modules=False)
    backbone, channels = dict(family['backbone']), list(family['channels'])
    pyramid = family.get('pyramid')
    if method in THREE_MAPS:
        if pyramid:  # one more: strides 8 to 64
            pyramid = {**pyramid, 'rescales': [2, 1, 0.5, 0.25]}
        else:
            backbone['out_indices'], channels = (1, 2, 3), channels[1:]
    elif method == 'detr':  # one map of stride 16
        backbone['out_indices'] = (backbone['depth'] - 1, ) if pyramid else (2, )
        channels, pyramid = [channels[2]], None
    cfg.model.backbone = backbone
    part = next(cfg.model[key] for key in ('neck', 'decode_head', 'panoptic_head')
                if key in cfg.model)
    part.in_channels = channels
    if 'auxiliary_head' in cfg.model:
        cfg.model.auxiliary_head.in_channels = channels[2]
    if pyramid:
        cfg.model.neck = [pyramid, cfg.model.neck] if 'neck' in cfg.model else pyramid
    if epochs:
        cfg.train_cfg.update(max_epochs=epochs, val_interval=epochs)
        for scheduler in cfg.param_scheduler:
            if scheduler.get('by_epoch'):
                scheduler.update(end=epochs, T_max=epochs)
    cfg.default_hooks.logger.interval = 10
    cfg.default_hooks.checkpoint = dict(
        type='CheckpointHook', interval=cfg.train_cfg.val_interval, max_keep_ckpts=1)
    return cfg


def train(method: str, family_name: str, cfg: Config, threads: int):
    """Train one combination and write down its score and losses.

    Raises:
        RuntimeError: the tool failed; with its last words.
    """
    folder = OUT / method / family_name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    cfg.dump(folder / 'config.py')
    command = [sys.executable, '-W', 'ignore', ROOT / 'tools' / 'train.py', folder / 'config.py',
               '--work-dir', folder]
    start = time.monotonic()
    done = subprocess.run(list(map(str, command)), cwd=ROOT, text=True, capture_output=True,
                          env={**os.environ, 'OMP_NUM_THREADS': str(threads)})
    if done.returncode:
        raise RuntimeError(f'{method} with {family_name} failed:\n' + '\n'.join(
            (done.stdout + done.stderr).splitlines()[-15:]))
    scalars, = folder.glob('*/vis_data/scalars.json')
    rows = read(scalars)
    losses = [row['loss'] for row in rows if 'loss' in row]
    scores = [row[METHODS[method][2]] for row in rows if METHODS[method][2] in row]
    (folder / 'result.json').write_text(json.dumps(dict(
        score=scores[-1], first_loss=losses[0], last_loss=losses[-1],
        minutes=(time.monotonic() - start) / 60)))


def train_all(runs: dict, jobs: int) -> list:
    """Train {(method, family's name): config}, ``jobs`` at a time. Returns those that failed."""
    threads = max(1, os.cpu_count() // jobs)
    begin, done, broken = time.monotonic(), 0, []

    def run(pair):
        nonlocal done
        method, family = pair
        try:
            train(method, family, runs[pair], threads)
            outcome = f'{METHODS[method][2]} {result(method, family)["score"]:.3f}'
        except RuntimeError as error:
            broken.append(pair)
            outcome = str(error)
        done += 1
        eta = (time.monotonic() - begin) / done * (len(runs) - done) / 60
        print(f'{done}/{len(runs)} {method} {family}: {outcome} (eta {eta:.0f} min)', flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(run, runs))
    return broken


def read(scalars: Path) -> list[dict]:
    return [json.loads(line) for line in scalars.read_text().splitlines()]


def result(method: str, family_name: str) -> dict | None:
    path = OUT / method / family_name / 'result.json'
    return json.loads(path.read_text()) if path.is_file() else None


def table(methods, families) -> str:
    """All results so far, in Markdown."""
    lines = ['| family | ' + ' | '.join(
        f'{m} {METHODS[m][2].split("/")[-1]} (>= {METHODS[m][3]:g})' for m in methods) + ' |',
        '| --- |' + ' --- |' * len(methods)]
    for family in families:
        cells = []
        for method in methods:
            found = result(method, family)
            cells.append('' if found is None else f'{found["score"]:.3g}, loss '
                         f'{found["first_loss"]:.3g} -> {found["last_loss"]:.2g}')
        lines.append(f'| {family} | ' + ' | '.join(cells) + ' |')
    return '\n'.join(lines) + '\n'
