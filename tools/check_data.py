#!/usr/bin/env python3
"""What is wrong with a data set: tools/check_data.py DATA, a folder or a .yaml file.

Says what was understood, how many objects each class has, and every kind of mistake with its
number, the first places and a remedy, as training with --data would (docs/own_data.md). Status 1
where an error would stop the training.
"""
import in_venv  # noqa: F401

# isort: split
import argparse
import sys
from pathlib import Path

from downstream.data.layouts import DETECTION, SEGMENTATION
from downstream.data.own import examine
from downstream.errors import one_message
from downstream.experiments import CONFIGS
from downstream.next_steps import command, suggest

# What is trained on data of a kind, for a start.
TRIED = {DETECTION: 'maskrcnn_focalnet_t_1x.py', SEGMENTATION: 'upernet_focalnet_t_160k.py'}


@one_message('nothing was changed; run the same command again')
def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('data', metavar='DATA',
                        help='folder, or .yaml file that describes it (docs/own_data.md)')
    parser.add_argument('--kind', choices=[DETECTION, SEGMENTATION], default=DETECTION,
                        help='boxes and masks (default), or label maps')
    args = parser.parse_args(argv)
    lines, findings = examine(args.data, args.kind)
    print('\n'.join(lines))
    for finding in sorted(findings, key=lambda finding: not finding.error):
        print('error: ' * finding.error or 'warning: ', finding, sep='')
    if not findings:
        print('nothing is wrong that a check can see')
    if any(finding.error for finding in findings):
        sys.exit(1)
    suggest(train_on_it=command('train.py', CONFIGS / TRIED[args.kind], '--data', Path(args.data)))


if __name__ == '__main__':
    main()
