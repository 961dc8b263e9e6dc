#!/usr/bin/env python3
"""What models cost: parameters, multiply-adds and the activations that training keeps.

    tools/complexity.py configs/maskrcnn_focalnet_t_1x.py
    tools/complexity.py --all --check       # compare with what the papers print

At the papers' input sizes: one image of 1280 x 800 for detection, 2048 x 512 for segmentation.
Multiply-adds are counted once, norms and interpolations as mmengine's counter does.
"""
import in_venv

# isort: split
import argparse
import logging
import time
import warnings
from pathlib import Path

from mmengine.config import Config

from downstream.errors import UserError, one_message
from downstream.scoring import ledger
from downstream.scoring.complexity import complexity, differences, measure


@one_message('nothing was written; run the same command again')
def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('configs', nargs='*', type=Path, metavar='CONFIG', help='experiments')
    parser.add_argument('--all', action='store_true', help='every experiment of the metafile')
    parser.add_argument('--check', action='store_true',
                        help='fail where the cost is not what is printed, and the metafile does '
                        'not say why')
    parser.add_argument('--write', action='store_true', help='write the costs into the metafile')
    parser.add_argument('--measure', type=int, metavar='N', default=0,
                        help='time N images on this machine, with peak memory')
    args = parser.parse_args(argv)
    if bool(args.configs) == args.all:
        parser.error('name configs, or give --all')
    entries = ledger.load()
    configs = [in_venv.ROOT / entry['Config'] for entry in entries['Models']]
    if not args.all:
        configs = args.configs
    for config in configs:
        if not config.is_file():
            raise UserError(f'there is no config file {config}')
    warnings.simplefilter('ignore')
    logging.disable(logging.WARNING)
    costs = {}  # by model: experiments differ in their data and schedules alone
    unexplained, begin = [], time.monotonic()
    for number, config in enumerate(configs, 1):
        cfg = Config.fromfile(config, import_custom_modules=False)
        model = str(cfg.model)
        cost = costs[model] = costs.get(model) or complexity(cfg)
        entry = ledger.find(entries, config)
        notes = differences(cost, ledger.published_cost(entry)) if entry else []
        if notes and entry.get('Discrepancy'):
            notes.append('explained in the metafile')
        elif notes or (args.check and entry is None):
            unexplained.append(config.stem)
        if args.write and entry:
            ledger.set_cost(entry, cost)
        line = (f'{config.stem:42} {cost["params"] / 1e6:7.2f} M  {cost["flops"] / 1e9:7.1f} G  '
                f'{cost["activations"] / 2**30:6.2f} GiB')
        if args.measure:
            speed, peak = measure(cfg, args.measure)
            line += f'  {speed:.3f} images/s, peak {peak:.1f} GiB'
        eta = (time.monotonic() - begin) / number * (len(configs) - number)
        print(f'{number:3}/{len(configs)} {line}  {"; ".join(notes)} (eta {eta:.0f} s)', flush=True)
        if len(configs) == 1:
            height, width = cost['input']
            print(f'one image of {width} x {height}; parameters: ' + ', '.join(
                f'{name} {count / 1e6:.2f} M' for name, count in cost['parts'].items()))
    if args.write:
        ledger.save(entries)
    if args.check and unexplained:
        raise UserError('not as printed, or not in the metafile, without an explanation there '
                        f'(Discrepancy): {", ".join(unexplained)}')


if __name__ == '__main__':
    main()
