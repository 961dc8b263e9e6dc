#!/usr/bin/env python3
"""Draw the demo data set (COCO and ADE layouts): tools/make_demo_data.py OUT."""
import in_venv  # noqa: F401

# isort: split
import argparse
from pathlib import Path

from downstream.data.generated import make_demo_data
from downstream.experiments import CONFIGS
from downstream.next_steps import command, suggest


def main():
    parser = argparse.ArgumentParser(description='Draw the demo data set (COCO and ADE layouts).')
    parser.add_argument('out', type=Path, metavar='OUT', help='folder to write to')
    parser.add_argument('--train', type=int, default=480, metavar='N',
                        help='training images (default: %(default)s)')
    parser.add_argument('--val', type=int, default=60, metavar='N',
                        help='validation images (default: %(default)s)')
    parser.add_argument('--size', type=int, default=160, metavar='PIXELS',
                        help='side of the images (default: %(default)s)')
    parser.add_argument('--seed', type=int, default=0, help='of the random numbers (default: 0)')
    args = parser.parse_args()
    try:
        make_demo_data(**vars(args))
    except (ValueError, OSError) as error:
        raise SystemExit(f'make_demo_data: {error}') from None
    suggest(train_on_it=command('train.py', CONFIGS / 'demo' / 'maskrcnn_focalnet.py',
                                DEMO_ROOT=args.out))


if __name__ == '__main__':
    main()
