#!/usr/bin/env python3
"""One training step and one test image of experiments, at a reduced size: do they run here?

    tools/check_experiments.py                       # every config
    tools/check_experiments.py configs/detr_*.py     # some

Images come from COCO_ROOT and ADE20K_ROOT where those have them, else they are generated. A
training step must give finite losses, and a finite gradient to every trainable parameter (several
processes cannot train what gets none). Prints a table, and fails when one of them does.
"""
import in_venv  # noqa: F401

# isort: split
import argparse
import contextlib
import io
import logging
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path

from downstream.data.generated import make_demo_data
from downstream.experiments import CONFIGS
from downstream.scoring.trials import check_experiment


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('configs', nargs='*', type=Path, help='config files (default: all)')
    parser.add_argument('--factor', type=float, default=0.25,
                        help='shrinks the images (default: %(default)s of their size)')
    args = parser.parse_args()
    warnings.simplefilter('ignore')
    logging.disable(logging.WARNING)
    configs = args.configs or sorted(CONFIGS.glob('*.py'))
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ['DEMO_ROOT'] = folder
        make_demo_data(Path(folder), train=4, val=4)
        begin = time.monotonic()
        for i, config in enumerate(configs, 1):
            start = time.monotonic()
            try:
                with contextlib.redirect_stdout(io.StringIO()):  # pycocotools is talkative
                    outcome = check_experiment(config, args.factor)
            except Exception as error:
                failed += 1
                outcome = f'FAILED: {type(error).__name__}: {error}'
            now = time.monotonic()
            eta = (now - begin) / i * (len(configs) - i)
            print(f'{i:3}/{len(configs)} {config.stem:34} {now - start:6.1f} s  {outcome}'
                  f'  (eta {eta:.0f} s)', flush=True)
    if failed:
        sys.exit(f'{failed} of {len(configs)} experiments failed')


if __name__ == '__main__':
    main()
