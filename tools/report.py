#!/usr/bin/env python3
"""A page about one run or several: tools/report.py WORK_DIR... -o report.

Curves, per-class scores, precision and recall, the worst and best images, how the configs differ,
complexity and environment, in one HTML file that needs no network. docs/report.md
"""
import in_venv  # noqa: F401

# isort: split
import argparse
from pathlib import Path

from downstream.errors import one_message
from downstream.looking.report import write_page


def parse_args(argv):
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('work_dirs', nargs='+', type=Path, metavar='WORK_DIR',
                        help='folder of a training (work_dirs/<config name>); predictions '
                             'are its *.pkl, from tools/test.py --out')
    parser.add_argument('-o', '--out', type=Path, default=Path('report'), metavar='DIR',
                        help='folder for index.html (default: %(default)s)')
    parser.add_argument('--images', type=int, default=6, metavar='N',
                        help='this many of the worst and of the best images (default: 6)')
    return parser.parse_args(argv)


@one_message('nothing is written; run the same command again')
def main(argv=None):
    args = parse_args(argv)
    page = write_page(args.work_dirs, args.out, args.images)
    print(f'{page}: {page.stat().st_size / 1e6:.1f} MB')


if __name__ == '__main__':
    main()
