#!/usr/bin/env python3
"""The demo: train a small Mask R-CNN and a small UPerNet with FocalNet on generated data, on a CPU.

Everything goes through tools/train.py and tools/test.py, as a real experiment would. Leaves
pictures of predictions on held-out images and the loss curves in work_dirs/demo and fails when a
model scores less than it should.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import matplotlib

matplotlib.use('Agg')
import matplotlib.pyplot as plt
from make_demo_data import make_demo_data
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / 'work_dirs' / 'demo'
# The configs of the demo and the scores that their models have to reach on held-out images.
EXPERIMENTS = {
    'maskrcnn_focalnet': {'coco/bbox_mAP': 0.60, 'coco/segm_mAP': 0.55},
    'upernet_focalnet': {'mIoU': 80.},  # mmseg counts in per cent
}
# What of the tools' output is shown; the rest is in their log files.
SHOWN = re.compile(r'Epoch\((train|val|test)\)|Average (Precision|Recall)|^[|+]|^error|Traceback')


def run_tool(tool: str, *args, log: Path):
    """Run a tool from the repository's root, showing its progress. Its output goes to ``log``."""
    env = {**os.environ, 'DEMO_ROOT': str(OUT / 'data')}
    command = [sys.executable, ROOT / 'tools' / tool, *args]
    print(f'$ tools/{tool} ' + ' '.join(str(arg).removeprefix(f'{ROOT}/') for arg in args),
          flush=True)
    with log.open('w') as file, subprocess.Popen(
            list(map(str, command)), cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT) as process:
        for line in process.stdout:
            file.write(line)
            if SHOWN.search(line):
                print('  ' + re.sub(r'^.* - mmengine - \w+ - ', '', line).rstrip()[:150],
                      flush=True)
    if process.returncode:
        sys.exit(f'tools/{tool} failed (status {process.returncode}); its last words:\n  '
                 + '\n  '.join(log.read_text().splitlines()[-15:]) + f'\nAll of them: {log}')


def newest(folder: Path, pattern: str) -> Path:
    return max(folder.glob(pattern), key=lambda path: path.stat().st_mtime)


def run_experiment(name: str) -> dict[str, float]:
    """Train and test one config. Returns its scores on the held-out images."""
    config = ROOT / 'configs' / 'demo' / f'{name}.py'
    work_dir = OUT / name
    work_dir.mkdir(parents=True, exist_ok=True)
    for picture in (work_dir / 'show').rglob('*.[pj][np]g'):
        picture.unlink()
    run_tool('train.py', config, '--work-dir', work_dir, log=work_dir / 'train.log')
    # The last checkpoint, not the best one: that was chosen with the images scored here.
    checkpoint = (work_dir / 'last_checkpoint').read_text().strip()
    run_tool('test.py', config, checkpoint, '--work-dir', work_dir / 'test', '--show-dir',
             work_dir / 'show', log=work_dir / 'test.log')
    record = newest(work_dir / 'test', '*/test_record.json')
    return json.loads(record.read_text())['metrics']


def contact_sheet(name: str, rows: int = 4, columns: int = 2):
    """A few held-out images, ground truth on the left and prediction on the right of each."""
    pictures = sorted((OUT / name / 'show').rglob('*.[pj][np]g'))[:rows * columns]
    tiles = [Image.open(picture).convert('RGB').resize((640, 320)) for picture in pictures]
    sheet = Image.new('RGB', (650 * columns, 330 * rows), 'white')
    for i, tile in enumerate(tiles):
        sheet.paste(tile, (650 * (i % columns) + 5, 330 * (i // columns) + 5))
    sheet.save(OUT / f'{name}_predictions.png')


def loss_curves():
    """Training losses and validation scores of both models."""
    figure, axes = plt.subplots(2, len(EXPERIMENTS), figsize=(10, 6), sharex='col')
    for column, (name, targets) in zip(axes.T, EXPERIMENTS.items(), strict=True):
        log = newest(OUT / name, '*/vis_data/scalars.json')
        rows = [json.loads(line) for line in log.read_text().splitlines()]
        train = [row for row in rows if 'loss' in row]
        iterations = [row['iter'] for row in train]
        for key in sorted({key for row in train for key in row if 'loss' in key}):
            column[0].plot(iterations, [row.get(key) for row in train], label=key,
                           linewidth=2 if key == 'loss' else 1)
        column[0].set(title=name, ylabel='training loss', ylim=(0, None))
        column[0].legend(fontsize=7)
        # A validation row counts epochs ('step'): place it at the iteration it came after.
        per_epoch = iterations[-1] / train[-1]['epoch']
        for target, least in targets.items():
            scored = [row for row in rows if target in row]
            line, = column[1].plot([row['step'] * per_epoch for row in scored],
                                   [row[target] for row in scored], marker='o', label=target)
            column[1].axhline(least, color=line.get_color(), linestyle=':')
        column[1].set(xlabel='iteration', ylabel='held-out score (dotted: required)')
        column[1].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(OUT / 'curves.png', dpi=120)


def main():
    argparse.ArgumentParser(description=__doc__.split('\n\n')[0]).parse_args()  # --help
    start = time.monotonic()
    make_demo_data(OUT / 'data')
    scores = {name: run_experiment(name) for name in EXPERIMENTS}
    for name in EXPERIMENTS:
        contact_sheet(name)
    loss_curves()
    print(f'\nScores on held-out images, after {(time.monotonic() - start) / 60:.1f} minutes:')
    missed = False
    for name, targets in EXPERIMENTS.items():
        for target, least in targets.items():
            score = scores[name][target]
            missed |= score < least
            print(f'  {name:20} {target:14} {score:7.3f}   (required: {least:g})'
                  + ('   MISSED' if score < least else ''))
    print(f'Predictions and curves: {OUT.relative_to(ROOT)}/*.png')
    if missed:
        sys.exit('The demo missed a required score: something on this machine does not compute '
                 'what it should. `.venv/bin/python -m backbones` prints what to report.')


if __name__ == '__main__':
    main()
