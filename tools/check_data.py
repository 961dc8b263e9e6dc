#!/usr/bin/env python3
"""What is wrong with a data set: tools/check_data.py DATA, a folder or a .yaml file.

Says what was understood, how many objects each class has, and every kind of mistake with its
number, the first places and a remedy, as training with --data would (docs/own_data.md). --report
DIR makes a page of it, with pictures. Status 1 where an error would stop the training.

With --config CONFIG it checks what tools/train.py CONFIG would read; the page then shows training
samples as the network gets them.
"""
import in_venv  # noqa: F401

# isort: split
import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from downstream.data.checks import check_data
from downstream.data.layouts import DETECTION, PANOPTIC, SEGMENTATION
from downstream.data.own import examine, use_data
from downstream.errors import UserError, one_message
from downstream.looking.data_page import write_page
from downstream.looking.samples_page import write_samples
from downstream.next_steps import after_check
from downstream.training.launching import add_config_options, parse, read_config


def parse_args(argv):
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('source', nargs='?', metavar='DATA', help='the same as --data DATA')
    parser.add_argument('--kind', choices=[DETECTION, SEGMENTATION, PANOPTIC],
                        help='boxes and masks (default), label maps, or both in one map')
    parser.add_argument('--config', help='check an experiment\'s data: its own, or --data')
    parser.add_argument('--report', type=Path, metavar='DIR',
                        help='write DIR/index.html: class counts, sizes, samples with their '
                             'labels, and pictures of what is wrong; with --config training '
                             'samples as the network gets them')
    parser.add_argument('--images', type=int, default=8, metavar='N',
                        help='on the page: so many samples of each split and examples of each '
                             'mistake (default: %(default)s)')
    add_config_options(parser)
    args = parse(parser, argv)
    if args.source and args.data:
        raise UserError('DATA and --data DATA say the same: give one of them')
    args.data = args.data or args.source
    if not args.data and not args.config:
        raise UserError('say which data: tools/check_data.py DATA, or --config CONFIG for that of '
                        'an experiment')
    if args.config and args.kind:
        raise UserError('--kind: the experiment says what kind of data it needs')
    if args.cfg_options and not args.config:
        raise UserError('--cfg-options: sets entries of a config, and there is no --config')
    return args


def check_experiment(args):
    cfg = read_config(args.config, args.cfg_options, 'model', 'train_dataloader')
    with TemporaryDirectory() as cfg.work_dir:
        notes = use_data(cfg, args.data) if args.data else []
        check_data(cfg, 'train', 'val', checked=bool(args.data))
        print('\n'.join([*notes, 'nothing is wrong that a check can see']))
        if args.report:
            say(write_samples(cfg, Path(args.config).stem, notes, args.report, args.images))


def check_set(args):
    found = examine(args.data, args.kind or DETECTION)
    print('\n'.join(found.lines))
    for finding in sorted(found.findings, key=lambda finding: not finding.error):
        print('error: ' * finding.error or 'warning: ', finding, sep='')
    if not found.findings:
        print('nothing is wrong that a check can see')
    if args.report:
        say(write_page(found, args.report, args.images))
    if any(finding.error for finding in found.findings):
        sys.exit(1)


def say(page: Path):
    print(f'{page}: {page.stat().st_size / 1e6:.1f} MB')


@one_message('nothing was changed; run the same command again')
def main(argv=None):
    args = parse_args(argv)
    if args.config:
        check_experiment(args)
    else:
        check_set(args)
    after_check(args)


if __name__ == '__main__':
    main()
