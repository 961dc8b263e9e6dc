#!/usr/bin/env python3
"""Make a tiny COCO of a few real images: ``tools/subset_coco.py COCO_ROOT OUT``.

OUT has COCO's layout, with the same images as train2017 and val2017: a detector that trains on it
can show that it memorises them (docs/measured.md).
"""
import argparse
import json
import shutil
import sys
from pathlib import Path


def subset(content: dict, images: int, min_area: float, max_objects: int) -> dict:
    """The annotations of the first images with a large object, few objects and no crowd.

    Args:
        content: COCO instance annotations.
        images: how many images.
        min_area: pixels that an image's largest object has at least.
        max_objects: objects that an image has at most.

    Raises:
        ValueError: not enough images qualify, or none is asked for.
    """
    objects = {}
    for annotation in content['annotations']:
        objects.setdefault(annotation['image_id'], []).append(annotation)
    if images < 1:
        raise ValueError(f'{images} images is none')
    chosen = []
    for image in content['images']:
        own = objects.get(image['id'], [])
        if (own and len(own) <= max_objects and not any(a['iscrowd'] for a in own)
                and max(a['area'] for a in own) >= min_area):
            chosen.append(image)
    if len(chosen) < images:
        raise ValueError(f'only {len(chosen)} images qualify, not {images}')
    chosen = chosen[:images]
    return dict(content, images=chosen,
                annotations=[a for image in chosen for a in objects[image['id']]])


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split(':')[0])
    parser.add_argument('coco_root', type=Path)
    parser.add_argument('out', type=Path)
    parser.add_argument('--images', type=int, default=4, help='how many (default: 4)')
    parser.add_argument('--min-area', type=float, default=96**2,
                        help="the largest object's least area in pixels (default: COCO's 'large')")
    parser.add_argument('--max-objects', type=int, default=5,
                        help='most objects in an image (default: 5)')
    args = parser.parse_args(argv)
    source = args.coco_root / 'annotations' / 'instances_train2017.json'
    if args.out.resolve() == args.coco_root.resolve():
        sys.exit('error: OUT is COCO_ROOT itself, whose annotations would be overwritten')
    try:
        few = subset(json.loads(source.read_text()), args.images, args.min_area, args.max_objects)
        for split in ('train2017', 'val2017'):
            (args.out / split).mkdir(parents=True, exist_ok=True)
            for image in few['images']:
                shutil.copy(args.coco_root / 'train2017' / image['file_name'], args.out / split)
            annotations = args.out / 'annotations' / f'instances_{split}.json'
            annotations.parent.mkdir(exist_ok=True)
            annotations.write_text(json.dumps(few))
    except OSError as error:
        sys.exit(f'error: {error}')
    except ValueError as error:  # JSON's errors too
        sys.exit(f'error: {source}: {error}')
    except (KeyError, TypeError) as error:
        sys.exit(f'error: {source} is not in COCO instance format ({error})')
    print(f'{args.out}: {len(few["images"])} images, {len(few["annotations"])} objects')


if __name__ == '__main__':
    main()
