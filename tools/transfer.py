#!/usr/bin/env python3
"""One table for backbones: the same heads, recipes and budget for each.

    tools/transfer.py demo:all --require                      # small versions of every family
    tools/transfer.py focalnet_t timm:resnet50 --seeds 3      # generated data
    tools/transfer.py focalnet_t swin_t --budget 1x --gpus 8  # COCO and ADE20K, published recipes
    tools/transfer.py focalnet_t swin_t --budget 1x --frozen  # features alone

Finished runs are read, those that were stopped go on: run the same command again.
docs/transfer.md
"""
import in_venv  # noqa: F401

# isort: split
import argparse
import logging
import sys
import warnings
from pathlib import Path

from downstream.errors import UserError, one_message
from downstream.looking.transfer_page import write_page
from downstream.scoring import transfer
from downstream.scoring.transfer import DEFAULT_HEADS, FROZEN_HEADS, RECIPES, Settings, heads
from downstream.scoring.transfer_table import Table
from downstream.training.launching import make_writable


def parse_args(argv):
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('backbones', nargs='+', metavar='NAME',
                        help='as tools/train.py --backbone takes them; or demo:FAMILY, a small '
                             'version of one of the families here (demo:all)')
    parser.add_argument('--heads', nargs='+', metavar='HEAD',
                        help='default: ' + ', '.join(DEFAULT_HEADS) + '; small ones are there of '
                             + ', '.join(heads('small', frozen=False)))
    parser.add_argument('--frozen', action='store_true',
                        help='compare features alone: backbones are not trained, heads are '
                             + ' and '.join(FROZEN_HEADS))
    parser.add_argument('--budget', choices=RECIPES, default='small',
                        help='small: small heads, minutes on generated data (default); 1x: the '
                             'published recipes on COCO and ADE20K')
    parser.add_argument('--data', metavar='FILE_OR_FOLDER',
                        help="data of your own in place of the budget's (docs/own_data.md)")
    parser.add_argument('--seeds', type=int, default=1, metavar='COUNT',
                        help='runs of each backbone in each head (default: 1)')
    parser.add_argument('--weights', choices=['own', 'none'],
                        help="backbones start from each one's own ImageNet weights (default with "
                             '--budget 1x) or from random ones')
    parser.add_argument('--gpus', type=int, default=1, metavar='N',
                        help='GPUs of one training; the images of a step stay the same')
    parser.add_argument('--jobs', type=int, default=1, metavar='N', help='runs at a time')
    parser.add_argument('--require', action='store_true',
                        help='fail where a small version does not reach the score that shows that '
                             'it learns')
    parser.add_argument('-o', '--out', type=Path, metavar='DIR',
                        help='default: work_dirs/transfer/BUDGET')
    return parser.parse_args(argv)


@one_message('the same command goes on with what is left')
def main(argv=None):
    args = parse_args(argv)
    chosen = dict.fromkeys(args.heads or (FROZEN_HEADS if args.frozen else DEFAULT_HEADS))
    for head in chosen:
        if head not in (known := heads(args.budget, args.frozen)):
            raise UserError(f'--heads {head}: with --budget {args.budget}'
                            f'{" --frozen" * args.frozen} there are {", ".join(known)}')
    for flag in 'seeds', 'gpus', 'jobs':
        if getattr(args, flag) < 1:
            raise UserError(f'--{flag} {getattr(args, flag)}: give a number from 1 on')
    if args.gpus > 1 and args.jobs > 1:
        raise UserError('--jobs and --gpus: trainings on several GPUs run one after the other')
    if args.require and (args.budget != 'small' or args.frozen):
        raise UserError('--require: only small versions have a score that they have to reach')
    out = args.out or Path('work_dirs', 'transfer', args.budget + '-frozen' * args.frozen)
    make_writable(out, '--out')
    weights = args.weights or ('own' if args.budget == '1x' or args.frozen else 'none')
    settings = Settings(out, args.budget, weights, args.data, args.gpus, args.frozen)
    if args.budget == 'small' and not args.data:
        transfer.make_data(out)
    backbones = dict.fromkeys(name for given in args.backbones for name in (
        [f'demo:{family}' for family in transfer.demo_families()] if given == 'demo:all'
        else [given]))
    warnings.simplefilter('ignore')
    logging.disable(logging.WARNING)
    trials = transfer.plan(backbones, chosen, args.seeds, settings)
    transfer.run_all(trials, args.jobs)
    table = Table(trials)
    page = write_page(table, out)
    print(f'\n{table.markdown()}\n{page}')
    failed = [trial for trial in trials if trial.error]
    below = transfer.missed(trials) if args.require else []
    if failed or below:
        sys.exit('\n'.join([f'error: {len(failed)} of {len(trials)} runs have no score, '
                            f'{len(below)} miss the one required', *below]))


if __name__ == '__main__':
    main()
