"""A tiny COCO of a few of its images: a detector can show that it memorises them."""
import json
import shutil
from pathlib import Path

from ..errors import UserError


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


def write_subset(coco_root: Path, out: Path, images: int = 4, min_area: float = 96**2,
                 max_objects: int = 5) -> dict:
    """Write a subset in COCO's layout, with the same images as train2017 and val2017.

    Args:
        images, min_area, max_objects: as in :func:`subset`.

    Returns:
        Its annotations.

    Raises:
        UserError: ``coco_root`` has no such images, or is ``out`` itself.
    """
    source = coco_root / 'annotations' / 'instances_train2017.json'
    if out.resolve() == coco_root.resolve():
        raise UserError('OUT is COCO_ROOT itself, whose annotations would be overwritten')
    try:
        few = subset(json.loads(source.read_text()), images, min_area, max_objects)
        for split in ('train2017', 'val2017'):
            (out / split).mkdir(parents=True, exist_ok=True)
            for image in few['images']:
                shutil.copy(coco_root / 'train2017' / image['file_name'], out / split)
            annotations = out / 'annotations' / f'instances_{split}.json'
            annotations.parent.mkdir(exist_ok=True)
            annotations.write_text(json.dumps(few))
    except OSError as error:
        raise UserError(str(error)) from None
    except ValueError as error:  # JSON's errors too
        raise UserError(f'{source}: {error}') from None
    except (KeyError, TypeError) as error:
        raise UserError(f'{source} is not in COCO instance format ({error})') from None
    return few
