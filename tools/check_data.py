#!/usr/bin/env python3
"""What is wrong with a data set: ``python tools/check_data.py DATA``, a folder or a .yaml file.

Says what was understood, how many objects each class has, and every kind of mistake with its
number, the first places and a remedy, as training with --data would (docs/own_data.md). --report
DIR makes a page of it, with pictures. Status 1 where an error would stop the training.
"""
import in_venv  # noqa: F401

# isort: split
import argparse
import sys
from pathlib import Path

from downstream.data.layouts import DETECTION, SEGMENTATION
from downstream.data.own import examine
from downstream.errors import one_message
from downstream.looking.data_page import write_page


@one_message('nothing was changed; run the same command again')
def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('data', metavar='DATA')
    parser.add_argument('--kind', choices=[DETECTION, SEGMENTATION], default=DETECTION,
                        help='boxes and masks (default), or label maps')
    parser.add_argument('--report', type=Path, metavar='DIR',
                        help='write DIR/index.html: class counts, sizes, samples with their '
                             'labels, and pictures of what is wrong')
    parser.add_argument('--images', type=int, default=8, metavar='N',
                        help='on the page: so many samples of each split and examples of each '
                             'mistake (default: %(default)s)')
    args = parser.parse_args(argv)
    found = examine(args.data, args.kind)
    print('\n'.join(found.lines))
    for finding in sorted(found.findings, key=lambda finding: not finding.error):
        print('error: ' * finding.error or 'warning: ', finding, sep='')
    if not found.findings:
        print('nothing is wrong that a check can see')
    if args.report:
        page = write_page(found, args.report, args.images)
        print(f'{page}: {page.stat().st_size / 1e6:.1f} MB')
    if any(finding.error for finding in found.findings):
        sys.exit(1)


if __name__ == '__main__':
    main()
