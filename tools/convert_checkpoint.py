#!/usr/bin/env python3
"""Make of any published weight file one that is loaded here as it is: docs/weights.md.

``python tools/convert_checkpoint.py SRC DST``: DST ends with .safetensors or .pth. ImageNet
weights become a backbone's, the authors' and detrex's DINO mmdet's; of a training checkpoint the
weights stay, averaged ones where EMA was used. With --config the result is checked against that
model, and ImageNet weights are fitted to its backbone.
"""
import in_venv  # noqa: F401

# isort: split
import argparse

from downstream.errors import one_message
from downstream.next_steps import after_converting
from downstream.training.converting import convert


def parse_args(argv):
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('source', metavar='SRC',
                        help='weight file, its URL, or the name of published weights')
    parser.add_argument('target', metavar='DST', help='file to write, .safetensors or .pth')
    parser.add_argument('--config', metavar='CFG', help='experiment that the result is for')
    parser.add_argument('--keep-classes', action='store_true',
                        help="keep the 91 classes of the authors' DINO instead of COCO's 80")
    parser.add_argument('--trust-checkpoint', action='store_true',
                        help='read SRC even where that runs code from it')
    parser.add_argument('--allow-partial', action='store_true',
                        help='take a file that fits the config only in part')
    return parser.parse_args(argv)


@one_message('nothing is written; run the same command again')
def main(argv=None):
    args = parse_args(argv)
    whole = convert(args)
    after_converting(args, whole)


if __name__ == '__main__':
    main()
