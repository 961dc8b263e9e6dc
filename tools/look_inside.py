#!/usr/bin/env python3
"""What goes on inside a backbone: tools/look_inside.py CONFIG CHECKPOINT IMAGE... -o DIR.

FocalNet's gates and modulator, CONTAINER's affinities, LocalViT's attention beside its locality,
and any backbone's effective receptive fields, in one HTML file. docs/look_inside.md
"""
import in_venv  # noqa: F401

# isort: split
import argparse
from pathlib import Path

from downstream.errors import UserError, one_message
from downstream.looking.inputs import find_inputs
from downstream.looking.inside import Insider
from downstream.looking.inside_page import write_inside
from downstream.training.launching import (
    add_checkpoint,
    add_config,
    add_config_options,
    add_weight_options,
    make_writable,
    parse,
    read_config,
)


def parse_args(argv):
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    add_config(parser)
    add_checkpoint(parser, ': of the model, or of its backbone alone')
    parser.add_argument('images', nargs='+', metavar='IMAGE',
                        help="image, folder, or a pattern such as 'photos/*.jpg'")
    parser.add_argument('-o', '--out', type=Path, required=True, metavar='DIR',
                        help='folder for index.html and pictures/')
    parser.add_argument('--point', nargs=2, type=float, metavar=('X', 'Y'),
                        help='whose attention and affinity are shown, in pixels of the images '
                             '(default: their middle)')
    parser.add_argument('--every-block', action='store_true',
                        help='show all blocks, and not the last of each stage alone')
    parser.add_argument('--device', help="such as cuda:1 or cpu (default: the GPU, if there's one)")
    add_config_options(parser)
    add_weight_options(parser)
    return parse(parser, argv)


@one_message('the page is not written; run the same command again')
def main(argv=None):
    args = parse_args(argv)
    cfg = read_config(args.config, args.cfg_options, 'model', 'test_dataloader')
    images = find_inputs(args.images)
    if videos := [str(image.path) for image in images if image.video]:
        raise UserError(f'{videos[0]} is a video; this looks at images')
    insider, notes = Insider.from_arguments(cfg, args, args.device)
    insider.notes += notes
    make_writable(args.out, '--out')
    page = write_inside(insider, Path(args.config).stem, args.checkpoint, images, args.point,
                        args.every_block, args.out)
    for note in insider.notes:
        print(note)
    print(f'{page}: {page.stat().st_size / 1e6:.1f} MB')


if __name__ == '__main__':
    main()
