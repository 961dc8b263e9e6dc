#!/usr/bin/env python3
"""Score results without the model: tools/score.py RESULTS --config CONFIG.

RESULTS is what tools/predict.py or tools/test.py --format-only wrote, a JSON file in COCO's format,
a folder of label maps, or the pickle of tools/test.py --out. Prints a table of all classes.
docs/predict.md
"""
import in_venv  # noqa: F401

# isort: split
import argparse
import tempfile
from pathlib import Path

from downstream.data.checks import check_data
from downstream.data.own import use_data
from downstream.errors import one_message
from downstream.scoring.predictions import build_dataset, score
from downstream.scoring.submissions import as_table, read_results
from downstream.training.launching import add_config_options, parse, read_config


def parse_args(argv):
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('results', type=Path, metavar='RESULTS',
                        help='what tools/predict.py or tools/test.py --format-only wrote, a JSON '
                             "file in COCO's format, a folder of label maps, or the .pkl of "
                             'tools/test.py --out')
    parser.add_argument('--config', required=True,
                        help='the experiment, whose test data is the ground truth')
    add_config_options(parser)
    return parse(parser, argv)


@one_message('nothing is scored; run the same command again')
def main(argv=None):
    args = parse_args(argv)
    cfg = read_config(args.config, args.cfg_options, 'model', 'test_dataloader')
    with tempfile.TemporaryDirectory() as folder:
        cfg.work_dir = folder  # for annotations that --data has to put right
        if args.data:
            print('\n'.join(use_data(cfg, args.data)))
        check_data(cfg, 'test', checked=bool(args.data))
        dataset = build_dataset(cfg)
        print(as_table(score(cfg, dataset, read_results(args.results, cfg, dataset), args.results)))


if __name__ == '__main__':
    main()
