#!/usr/bin/env python3
"""Kill trainings at random moments, resume them, and compare the ends: tools/drill.py.

    tools/drill.py                                   # small trainings on generated data
    tools/drill.py CONFIG --kills 20                 # one of your own, some minutes long
    tools/drill.py --soak 120                        # memory, files, processes of one process

Half of the kills come while a checkpoint is written. docs/reliability.md
"""
import in_venv  # noqa: F401

# isort: split
import argparse
import os
import sys
from pathlib import Path

from downstream.data.generated import make_demo_data
from downstream.errors import one_message
from downstream.training.drilling import Drill, soak

SMALL = {
    # Epochs, worker processes, averaged weights.
    'detection': '''
_base_ = ['{configs}/demo/maskrcnn_focalnet.py']
train_cfg = dict(max_epochs=4, val_interval=1)
train_dataloader = dict(num_workers=2, persistent_workers=True, dataset=dict(indices=24))
val_dataloader = dict(num_workers=1, dataset=dict(indices=4))
custom_hooks = [dict(type='EMAHook', momentum=0.01)]
model = dict(backbone=dict(drop_path_rate=0.2))
''',
    # Iterations, in the training's own process.
    'segmentation': '''
_base_ = ['{configs}/demo/upernet_focalnet.py']
train_cfg = dict(_delete_=True, type='IterBasedTrainLoop', max_iters=24, val_interval=6)
train_dataloader = dict(num_workers=0, persistent_workers=False,
                        sampler=dict(type='InfiniteSampler', shuffle=True))
val_dataloader = dict(num_workers=0, persistent_workers=False, dataset=dict(indices=4))
param_scheduler = [dict(type='PolyLR', eta_min=0., power=1., begin=0, end=24, by_epoch=False)]
default_hooks = dict(checkpoint=dict(by_epoch=False, interval=4))
log_processor = dict(by_epoch=False)
''',
}


def parse_args(argv):
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('config', nargs='?', help='an experiment (default: two small ones)')
    parser.add_argument('--kills', type=int, default=25, metavar='N', help='of each (default: 25)')
    parser.add_argument('--processes', type=int, default=1, metavar='N',
                        help='of a training (tools/dist_train.sh)')
    parser.add_argument('--soak', type=float, metavar='MINUTES',
                        help='kill nothing: train and test in one process for so long, and write '
                             'down what it holds (soak.csv)')
    parser.add_argument('--seed', type=int, default=0, help='of the moments')
    parser.add_argument('-o', '--out', type=Path, default=Path('work_dirs/drill'), metavar='DIR')
    return parser.parse_args(argv)


@one_message('what was done is in the folder that --out names')
def main(argv=None):
    args = parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    configs = [Path(args.config)] if args.config else []
    if not configs:
        os.environ['DEMO_ROOT'] = str((args.out / 'data').absolute())
        make_demo_data(args.out / 'data')
        for name, text in SMALL.items():
            configs.append(args.out / f'{name}.py')
            root = Path(__file__).resolve().parents[1]
            configs[-1].write_text(text.format(configs=os.path.relpath(root / 'configs', args.out)))
    if args.soak:
        for config in configs:
            rows = soak(config, config.with_suffix(''), args.soak / len(configs))
            print(f'{config.stem}: {len(rows)} rounds; the first, the middle, the last:')
            for row in rows[0], rows[len(rows) // 2], rows[-1]:
                print('  ' + ', '.join(f'{key} {value:.0f}' for key, value in row.items()))
        return
    different = []
    for config in configs:
        counts = Drill(config, args.out / config.stem, args.kills,
                       seed=args.seed, processes=args.processes).run()
        different += [f'{config.stem}: {text}' for text in counts['differences']]
        print(f'{config.stem}: ' + ', '.join(f'{key} {value:.1f}' if isinstance(value, float) else
                                             f'{key} {value}' for key, value in counts.items()))
    if different:
        sys.exit('\n'.join(['error: not what the run that was left alone came to:', *different]))


if __name__ == '__main__':
    main()
