#!/usr/bin/env python3
"""Export a model as ONNX: tools/export.py CONFIG CHECKPOINT -o model.onnx [--check IMAGE...].

The file takes images of any size and has its classes and its preprocessing with it; it is compared
with PyTorch before it counts as written (docs/export.md).
"""
import in_venv  # noqa: F401

# isort: split
import argparse
from pathlib import Path

from downstream.errors import UserError, one_message
from downstream.looking.exporting import compare, export, need
from downstream.looking.inputs import find_inputs
from downstream.looking.onnx_model import OnnxPredictor
from downstream.looking.predictor import Predictor
from downstream.scoring.submissions import label_values
from downstream.training.launching import (
    add_checkpoint,
    add_config,
    add_config_options,
    add_weight_options,
    parse,
    read_config,
)


def parse_args(argv):
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    add_config(parser)
    add_checkpoint(parser)
    parser.add_argument('-o', '--out', type=Path, required=True, metavar='FILE',
                        help='the file to write, such as model.onnx')
    parser.add_argument('--check', nargs='+', default=[], metavar='IMAGE',
                        help='images, folders or patterns: compare the results on them with '
                             "PyTorch's, and the time that both take")
    parser.add_argument('--backbone-only', action='store_true',
                        help="the backbone's maps alone, of any method")
    add_config_options(parser)
    add_weight_options(parser)
    return parse(parser, argv)


@one_message('nothing was written')
def main(argv=None):
    args = parse_args(argv)
    if args.out.suffix != '.onnx':
        raise UserError(f'-o {args.out}: the file is to be called .onnx')
    if args.backbone_only and args.check:
        raise UserError('--check compares results, and a backbone alone has none: its maps are '
                        'compared anyway')
    need('onnx')
    need('onnxruntime')
    cfg = read_config(args.config, args.cfg_options, 'model', 'test_dataloader')
    images = [entry.path for entry in find_inputs(args.check)] if args.check else []
    predictor, notes = Predictor.from_arguments(cfg, args, 'cpu')
    values = label_values(cfg) if predictor.kind == 'segmentation' else None
    compared = export(predictor, args.out, args.backbone_only, values)
    for note in [*notes, *predictor.notes]:
        print(note)
    if images:
        print('\n'.join(compare(predictor, OnnxPredictor(args.out), images)))
    print(f'{args.out}: {args.out.stat().st_size / 2**20:.1f} MiB, compared with PyTorch'
          + ('' if compared else ' on noise, in which it finds nothing: --check IMAGE... compares '
             'on images'))


if __name__ == '__main__':
    main()
