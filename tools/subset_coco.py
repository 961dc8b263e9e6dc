#!/usr/bin/env python3
"""Make a tiny COCO of a few real images: tools/subset_coco.py COCO_ROOT OUT.

OUT has COCO's layout, with the same images as train2017 and val2017: a detector that trains on it
can show that it memorises them (docs/measured.md).
"""
import in_venv  # noqa: F401

# isort: split
import argparse
from pathlib import Path

from downstream.data.subset import write_subset
from downstream.errors import one_message
from downstream.experiments import CONFIGS
from downstream.next_steps import command, suggest


@one_message('OUT is not complete; run the same command again')
def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split(':')[0])
    parser.add_argument('coco_root', type=Path, metavar='COCO_ROOT',
                        help='with annotations/, train2017/ and val2017/')
    parser.add_argument('out', type=Path, metavar='OUT', help='folder to write to')
    parser.add_argument('--images', type=int, default=4, metavar='N', help='how many (default: 4)')
    parser.add_argument('--min-area', type=float, default=96**2, metavar='PIXELS',
                        help="take images whose largest object has this area at least (default: "
                             "COCO's 'large', 96 x 96)")
    parser.add_argument('--max-objects', type=int, default=5, metavar='N',
                        help='most objects in an image (default: 5)')
    args = parser.parse_args(argv)
    few = write_subset(args.coco_root, args.out, args.images, args.min_area, args.max_objects)
    print(f'{args.out}: {len(few["images"])} images, {len(few["annotations"])} objects')
    suggest(memorise_them=command(
        'train.py', CONFIGS / 'demo' / 'memorise_maskrcnn_focalnet_t.py', COCO_ROOT=args.out))


if __name__ == '__main__':
    main()
