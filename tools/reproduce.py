#!/usr/bin/env python3
"""Score a released model here: ``python tools/reproduce.py dino_focalnet_l_5scale_12e_detrex``.

Fetches it, scores it on the whole validation set, says whether the published number is met, and
enters the score in the ledger (docs/reproduce.md). Status 1 where a number is not met.
"""
import in_venv

# isort: split
import argparse
import sys
from pathlib import Path

from downstream.errors import one_message
from downstream.scoring import ledger
from downstream.scoring.reproducing import experiments, reproduce, run_all, subprocess_test


def parse_args(argv):
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument('name', nargs='?', metavar='CONFIG_NAME', help='an experiment')
    which.add_argument('--all-released', action='store_true',
                       help='every experiment whose model was released')
    parser.add_argument('--images', type=int, metavar='N',
                        help='a quick look at N images, with a 95 %% interval; not entered')
    parser.add_argument('--tta', action='store_true', help='with test-time augmentation')
    parser.add_argument('--gpus', type=int, default=1, metavar='N', help='processes, one a GPU')
    parser.add_argument('--work-dir', type=Path, metavar='FOLDER',
                        default=Path('work_dirs/reproduce'), help='(default: %(default)s)')
    return parser.parse_args(argv)


@one_message('nothing was entered; run the same command again')
def main(argv=None):
    args = parse_args(argv)
    run_test = subprocess_test(in_venv.ROOT / 'tools', args.gpus)

    def run(name):
        return reproduce(name, args.work_dir / name, run_test, args.images, args.tta)

    if not args.all_released:
        result = run(Path(args.name).stem)
        print(result.line)
        sys.exit(0 if result.met else 1)
    lines, met = run_all(experiments(ledger.load(ledger.METAFILE)), run)
    print('\n'.join(['', *lines]))
    sys.exit(0 if met else 1)


if __name__ == '__main__':
    main()
