#!/usr/bin/env python3
"""Does every family learn in every kind of head? Small versions, generated data, a table.

    tools/prove_learning.py                                   # all
    tools/prove_learning.py --methods detr --families container

Each run goes through tools/train.py, for a few epochs, and is scored on held-out images; only DETR
memorises eight images and is scored on those. The strongest heads (Cascade and what follows it)
learn with FocalNet unless --families names others. A run that has its score already is not repeated
(--fresh repeats it). Leaves the table and the curves in work_dirs/learning, and fails when a score
is missed.
"""
import in_venv

# isort: split
import argparse
import sys

from mmengine.config import Config

from downstream.experiments import CONFIGS
from downstream.looking.curves import learning_curves
from downstream.scoring import learning
from downstream.scoring.learning import EVERY_FAMILY, METHODS, OUT


def main():
    families = Config.fromfile(CONFIGS / '_base_' / 'demo_backbones.py').families
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('--methods', nargs='+', choices=METHODS, default=list(METHODS),
                        metavar='METHOD',
                        help='kinds of head (default: all): ' + ', '.join(METHODS))
    parser.add_argument('--families', nargs='+', choices=families, metavar='FAMILY',
                        help='families of backbones (default: all): ' + ', '.join(families))
    parser.add_argument('--jobs', type=int, default=1, metavar='N',
                        help='runs at a time (they share the cores)')
    parser.add_argument('--fresh', action='store_true', help='repeat runs that have a score')
    args = parser.parse_args()

    learning.make_data()
    wanted = [(method, family) for family in args.families or families for method in args.methods
              if args.families or method in EVERY_FAMILY or family == 'focalnet']
    runs = [pair for pair in wanted if args.fresh or learning.result(*pair) is None]
    configs = {(method, family): learning.compose(method, families[family])
               for method, family in runs}
    broken = learning.train_all(configs, args.jobs)
    text = learning.table(METHODS, families)
    (OUT / 'table.md').write_text(text)
    learning_curves(METHODS, families)
    print(f'\n{text}\nTable and curves: {OUT.relative_to(in_venv.ROOT)}')
    missed = [f'{method} {family}' for method, family in wanted
              if (method, family) in broken
              or learning.result(method, family)['score'] < METHODS[method][3]]
    if missed:
        sys.exit('missed: ' + ', '.join(missed))


if __name__ == '__main__':
    main()
