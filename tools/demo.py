#!/usr/bin/env python3
"""The demo: train a small Mask R-CNN and a small UPerNet with FocalNet on generated data, on a CPU.

Everything goes through tools/train.py and tools/test.py, as a real experiment would. Leaves
pictures of predictions on held-out images and the loss curves in work_dirs/demo and fails when a
model scores less than it should.
"""
import in_venv

# isort: split
import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from downstream.data.generated import make_demo_data
from downstream.looking.curves import demo_curves
from downstream.looking.pictures import contact_sheet
from downstream.next_steps import command, suggest

ROOT = in_venv.ROOT
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
    argv = [sys.executable, ROOT / 'tools' / tool, *args]
    print(f'$ tools/{tool} ' + ' '.join(str(arg).removeprefix(f'{ROOT}/') for arg in args),
          flush=True)
    with log.open('w') as file, subprocess.Popen(
            list(map(str, argv)), cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT) as process:
        for line in process.stdout:
            file.write(line)
            if SHOWN.search(line):
                print('  ' + re.sub(r'^.* - mmengine - \w+ - ', '', line).rstrip()[:150],
                      flush=True)
    if process.returncode:
        sys.exit(f'tools/{tool} failed (status {process.returncode}); its last words:\n  '
                 + '\n  '.join(log.read_text().splitlines()[-15:]) + f'\nAll of them: {log}')


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
    record = max((work_dir / 'test').glob('*/test_record.json'), key=os.path.getmtime)
    return json.loads(record.read_text())['metrics']


def main():
    argparse.ArgumentParser(description=__doc__.split('\n\n')[0]).parse_args()  # --help
    start = time.monotonic()
    make_demo_data(OUT / 'data')
    scores = {name: run_experiment(name) for name in EXPERIMENTS}
    for name in EXPERIMENTS:
        contact_sheet(OUT / name / 'show', OUT / f'{name}_predictions.png')
    demo_curves(OUT, EXPERIMENTS)
    print(f'\nScores on held-out images, after {(time.monotonic() - start) / 60:.1f} minutes:')
    missed = False
    for name, targets in EXPERIMENTS.items():
        for target, least in targets.items():
            score = scores[name][target]
            missed |= score < least
            print(f'  {name:20} {target:14} {score:7.3f}   (required: {least:g})'
                  + ('   MISSED' if score < least else ''))
    print(f'Predictions and curves: {OUT.relative_to(ROOT)}/*.png')
    suggest(a_page_about_both=command('report.py', *(OUT / name for name in EXPERIMENTS), '-o',
                                      OUT / 'report'))
    if missed:
        sys.exit('The demo missed a required score: something on this machine does not compute '
                 'what it should. `.venv/bin/python -m backbones` prints what to report.')


if __name__ == '__main__':
    main()
