#!/usr/bin/env python3
"""What is wrong with a data set: ``python tools/check_data.py DATA``, a folder or a .yaml file.

Says what was understood, how many objects each class has, and every kind of mistake with its
number, the first places and a remedy, as training with --data would (docs/own_data.md). Status 1
where an error would stop the training.
"""
import in_venv  # noqa: F401

# isort: split
import argparse
import sys

from downstream.data.layouts import DETECTION, PANOPTIC, SEGMENTATION
from downstream.data.own import examine
from downstream.errors import one_message


@one_message('nothing was changed; run the same command again')
def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('data', metavar='DATA')
    parser.add_argument('--kind', choices=[DETECTION, SEGMENTATION, PANOPTIC], default=DETECTION,
                        help='boxes and masks (default), label maps, or both in one map')
    args = parser.parse_args(argv)
    lines, findings = examine(args.data, args.kind)
    print('\n'.join(lines))
    for finding in sorted(findings, key=lambda finding: not finding.error):
        print('error: ' * finding.error or 'warning: ', finding, sep='')
    if not findings:
        print('nothing is wrong that a check can see')
    if any(finding.error for finding in findings):
        sys.exit(1)


if __name__ == '__main__':
    main()
