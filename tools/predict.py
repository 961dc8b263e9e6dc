#!/usr/bin/env python3
"""Predict images and videos: tools/predict.py CONFIG CHECKPOINT INPUT... -o OUT.

An exported model needs no config: tools/predict.py model.onnx INPUT... -o OUT. Writes pictures, and
results in COCO's formats or as label maps (docs/predict.md). The same command goes on where it
was stopped. Status 1 where a file was broken and left out.
"""
import in_venv  # noqa: F401

# isort: split
import argparse
import sys
from pathlib import Path

from backbones.pretrained import local_file
from downstream.errors import UserError, one_message, printable
from downstream.looking.inputs import find_inputs
from downstream.looking.onnx_model import of_onnx
from downstream.looking.outputs import Output
from downstream.looking.predictor import Predictor
from downstream.scoring.predictions import SHOWN
from downstream.scoring.submissions import label_values
from downstream.training.launching import (
    add_config_options,
    add_weight_options,
    make_writable,
    parse,
    read_config,
)


def parse_args(argv):
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('model', nargs='+', metavar='CONFIG CHECKPOINT',
                        help='the experiment, a file of configs/ or the one that a training left '
                             'in its work dir, and a file, URL or name of a published one; or '
                             'one .onnx file of tools/export.py alone')
    parser.add_argument('inputs', nargs='+', metavar='INPUT',
                        help="image, video, folder, or a pattern such as 'photos/*.jpg'")
    parser.add_argument('-o', '--out', type=Path, required=True, metavar='DIR',
                        help='folder for the results')
    parser.add_argument('--batch', type=int, default=1, metavar='N', help='images at a time (1)')
    parser.add_argument('--score-thr', type=float, default=SHOWN, metavar='SCORE',
                        help='least score of what is drawn (default: %(default)s); the results '
                             'have all')
    parser.add_argument('--device', help="such as cuda:1 or cpu (default: the GPU, if there's one)")
    parser.add_argument('--tta', action='store_true',
                        help="merge the predictions of several sizes and flips of each image (the "
                             "config's tta_model and tta_pipeline)")
    parser.add_argument('--no-pictures', action='store_true', help='write results alone')
    parser.add_argument('--fresh', action='store_true',
                        help='repeat what is done already, in place of going on')
    add_config_options(parser)
    add_weight_options(parser)
    args = parse(parser, argv)
    rest = [*args.model, *args.inputs]
    args.config = None if rest[0].endswith('.onnx') else rest.pop(0)
    args.checkpoint, *args.inputs = rest
    return args if args.inputs else parser.error('no INPUT is named')


def of_checkpoint(args):
    """The predictor, the values of label maps, and notes."""
    cfg = read_config(args.config, args.cfg_options, 'model', 'test_dataloader')
    predictor, notes = Predictor.from_arguments(cfg, args, args.device, args.tta)
    return predictor, label_values(cfg) if predictor.kind == 'segmentation' else None, notes


@one_message('the same command goes on where it was')
def main(argv=None):
    args = parse_args(argv)
    if args.batch < 1:
        raise UserError(f'--batch {args.batch}: at least one image at a time')
    inputs = find_inputs(args.inputs)
    predictor, values, notes = of_checkpoint(args) if args.config else of_onnx(args)
    make_writable(args.out, '--out')
    file = local_file(args.checkpoint)
    output = Output(
        predictor, args.out, args.batch, args.score_thr, not args.no_pictures,
        values, dict(config=args.config, checkpoint=args.checkpoint, options=str(args.cfg_options),
             data=args.data, tta=args.tta,
             state=[file.stat().st_size, file.stat().st_mtime_ns] if file.is_file() else None))
    skipped = output.run(inputs, args.fresh)
    for note in [*notes, *predictor.notes, *output.notes]:
        print(printable(note))
    print(f'{len(inputs) - len(skipped)} of {len(inputs)} done: {args.out}')
    if skipped:
        sys.exit('\n'.join(f'skipped: {why}' for why in skipped.values()))


if __name__ == '__main__':
    main()
