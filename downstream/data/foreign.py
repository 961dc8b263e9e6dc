"""What annotation tools write, one label file an image, becomes COCO's format.

What follows (checks, validation images, masks or none) is then the same for all.
"""
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import labelme, voc, yolo
from .coco import MOST
from .files import images_in, write_json
from .findings import Finding
from .headers import Header, headers, shown_size
from .labels import Labels
from .layouts import Layout, Split

MISTAKES = {'.txt': yolo.MISTAKES, '.xml': voc.MISTAKES, '.json': labelme.MISTAKES}
NOT_LABELS = 'classes.txt', 'notes.json'  # what tools put beside label files


def to_coco(layout: Layout, folder: Path) -> tuple[list[str], list[Finding]]:
    """Write each split in COCO's format.

    Args:
        layout: of label files (it has a suffix); its splits and classes are set anew.
        folder: for the files {split}_labels.json.

    Returns:
        (the lines to log, what is wrong in label files).
    """
    read, notes, findings = {}, [], []
    names = {number: layout.classes[index] for number, index in layout.values.items()}
    for name, split in layout.splits.items():
        images = split.files or images_in(split.images)
        files = [label_file(image, split, layout.suffix) for image in images]
        findings += [finding for finding in unpaired(images, files, split, layout)
                     if finding not in findings]  # splits may lie in one folder
        # Pascal VOC's boxes are in pixels, and the files say the sizes.
        known = [None] * len(images) if layout.suffix == '.xml' else headers(images)
        with ThreadPoolExecutor() as pool:
            read[name] = list(pool.map(
                lambda image, file, found: labels_of(image, file, found, layout, names),
                images, files, known))
        lacking = sum(file is None for file in files)
        if lacking:
            notes.append(f'{split.labels or split.images}: {lacking:,} of {len(images):,} images '
                         f'have no label file ({layout.suffix}): they are taken to show no objects')
        if not any(labels.objects or labels.slips for labels in read[name]):
            findings.append(Finding(str(split.labels or split.images), 'label files have an object',
                                    count=0, total=len(images) - lacking, error=True))
        layout.splits[name] = Split(split.images, folder / f'{name}_labels.json',
                                    split.labels or split.images, images)
    findings += slips_in([labels for split in read.values() for labels in split], layout)
    objects = [found for split in read.values() for labels in split for found in labels.objects]
    if layout.suffix == '.xml':
        notes += voc.finish(objects)
    if layout.suffix == '.json':
        notes += labelme.finish(objects)
    if not layout.classes:
        layout.classes = tuple(sorted({found['name'] for found in objects}))
        notes.append(f'{len(layout.classes)} classes, in the order of their names: '
                     + ', '.join(layout.classes))
    for name, split in layout.splits.items():
        images = [image.relative_to(split.images).as_posix() for image in split.files]
        write_json(split.annotations, content(images, read[name], layout.classes))
    return notes, findings


def label_file(image: Path, split: Split, suffix: str) -> Path | None:
    """The label file of an image, None where it has none."""
    if suffix == '.txt':
        file = yolo.label_file(image)
    else:
        file = split.labels / image.relative_to(split.images).with_suffix(suffix)
    return file if file.is_file() else None


def unpaired(images: list[Path], files: list[Path | None], split: Split, layout: Layout
             ) -> list[Finding]:
    """Label files of several images, and of none."""
    findings = []
    counts = Counter(file for file in files if file)
    several = [short(image, layout) for image, file in zip(images, files, strict=True)
               if counts[file] > 1]
    if several:
        findings.append(Finding(str(split.images), 'images share their label file with another',
                                several, total=len(images), error=True,
                                remedy='they differ in the suffix alone: whose are the labels?'))
    # An image list may be of a part; labels of the others are no mistake.
    others = {label_file(image, split, layout.suffix) for image in images_in(split.images)}
    folders = [split.labels] if split.labels else {file.parent for file in counts}
    there = {path for folder in folders for path in folder.rglob(f'*{layout.suffix}')
             if path.name not in NOT_LABELS and not path.name.startswith('.')}
    alone = sorted(there - others - counts.keys())
    if alone:
        findings.append(Finding(str(split.labels or split.images), 'label files have no image of '
                                'their name', [short(path, layout) for path in alone],
                                total=len(there), remedy='they are not used',
                                error=len(alone) > MOST * len(there)))
    return findings


def short(path: Path, layout: Layout) -> str:
    """A path below the data set's folder."""
    root = layout.source if layout.source.is_dir() else layout.source.parent
    return str(path.relative_to(root) if path.is_relative_to(root) else path)


def labels_of(image: Path, file: Path | None, found: Header | str | None, layout: Layout,
              names: dict[int, str]) -> Labels:
    """What the label file of an image says; an image that cannot be read is found later."""
    labels = Labels(file, short(file, layout) if file else '', image=image)
    if not file or isinstance(found, str):
        return labels
    if layout.suffix == '.xml':
        voc.read(labels)
        return labels
    size = shown_size(found)
    if layout.suffix == '.json':
        labelme.read(labels, size)
    else:
        yolo.read(labels, size, names, layout.keypoints)
    return labels


def slips_in(read: list[Labels], layout: Layout) -> list[Finding]:
    """What is wrong in label files, by the kind of mistake."""
    places, images = {}, {}
    for labels in read:
        for what, place in labels.slips:
            places.setdefault(what, []).append(place)
            images.setdefault(what, []).append(str(labels.image))
    known = MISTAKES[layout.suffix]
    return [Finding(str(layout.source), what, found, error=what in known, images=images[what],
                    remedy=known.get(what, 'they are not used')) for what, found in places.items()]


def content(names: list[str], read: list[Labels], classes: tuple[str, ...]) -> dict:
    """A split in COCO's format.

    Args:
        names: of the images, below their folder.
        read: what is said of each.
    """
    numbers = {name: number for number, name in enumerate(classes, 1)}
    images, annotations = [], []
    for number, (name, labels) in enumerate(zip(names, read, strict=True), 1):
        images.append(dict(id=number, file_name=name))
        if labels.size:
            images[-1].update(width=labels.size[0], height=labels.size[1])
        for found in labels.objects:
            shape = {key: value for key, value in found.items() if key != 'name'}
            annotations.append({'iscrowd': 0, **shape, 'id': len(annotations) + 1,
                                'image_id': number, 'category_id': numbers[found['name']]})
    return dict(images=images, annotations=annotations,
                categories=[dict(id=number, name=name) for name, number in numbers.items()])
