"""Where the parts of a data set of one's own lie: said in a YAML file, or found in a folder."""
import difflib
import os
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import UserError, shown
from . import voc, yolo
from .files import IMAGES, files_in, images_in, read_list, read_yaml
from .labels import class_names

SPLITS = 'train', 'val', 'test'
DETECTION, SEGMENTATION, PANOPTIC = 'detection', 'segmentation', 'panoptic'
# What each part of a split is called in the file, by the kind of data.
NEEDED = {DETECTION: {'annotations', 'images'}, SEGMENTATION: {'images', 'labels'},
          PANOPTIC: {'annotations', 'images', 'labels'}}
EXAMPLE = {
    DETECTION: 'train: {annotations: train.json, images: train}',
    SEGMENTATION: 'train: {images: images/train, labels: labels/train}',
    PANOPTIC: 'train: {annotations: panoptic_train.json, images: train, labels: panoptic_train}',
}
# What data of a kind is, and which experiments take it.
MEANING = {
    DETECTION: ('boxes or masks of single objects', 'maskrcnn_*, retinanet_*, dino_* and the other '
                'detectors'),
    SEGMENTATION: ('label maps, pictures with one class number a pixel',
                   'upernet_* and mask2former_*_ade20k_*'),
    PANOPTIC: ("COCO's panoptic maps and annotations", 'mask2former_*_panoptic_*'),
}


@dataclass
class Split:
    """The places of one split: ``annotations`` is a file, the others are folders.

    ``files`` are its images where they are not all of the folder.
    """
    images: Path
    annotations: Path | None = None
    labels: Path | None = None
    files: list[Path] | None = None

    def places(self) -> dict[str, Path]:
        parts = dict(annotations=self.annotations, images=self.images, labels=self.labels)
        return {part: place for part, place in parts.items() if place}


@dataclass
class Layout:
    """A data set of one's own.

    Attributes:
        kind: 'detection', 'segmentation' or 'panoptic'.
        source: the file or folder that was named.
        splits: by name; 'train' is there.
        classes: their names in the order of their numbers; () where the annotations say them.
        values: {value in a label map, or number in a YOLO label file: class number}.
        ignore: segmentation: values that count as unlabelled.
        found: in words, as what a folder was understood.
        suffix: of an annotation tool's label files, one an image: '.txt' (YOLO), '.xml' (Pascal
            VOC), '.json' (LabelMe); '' where annotations are in COCO's format.
        keypoints: numbers that follow a box in a YOLO label file.
        notes: lines to log.
    """
    kind: str
    source: Path
    splits: dict[str, Split]
    classes: tuple[str, ...] = ()
    values: dict[int, int] = field(default_factory=dict)
    ignore: tuple[int, ...] = (255, )
    found: str = ''
    suffix: str = ''
    keypoints: int = 0
    notes: list[str] = field(default_factory=list)

    def __str__(self):
        lines = [f'{self.source}: {self.kind}' + (f', {self.found}' if self.found else '')]
        for name, split in self.splits.items():
            parts = ', '.join(f'{part} {path}' for part, path in split.places().items())
            number = f' ({len(split.files):,} images)' if split.files else ''
            lines.append(f'{name}: {parts}{number}')
        return '\n  '.join(lines)


def find_layout(source: str, kind: str) -> Layout:
    """The layout of a data set.

    Args:
        source: a YAML file, ours or Ultralytics', or a folder in a known layout.
        kind: what the experiment needs.

    Raises:
        UserError: there is no such file or folder, it cannot be understood, or a part is missing.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        layout = in_folder(path, kind)
    elif path.suffix in ('.yaml', '.yml') and path.is_file():
        layout = in_file(path, kind)
    elif path.exists():
        raise UserError(f'--data {source}: give a .yaml file that describes the data, or a folder '
                        '(docs/own_data.md)')
    else:
        raise UserError(f'--data {source}: there is no such file or folder')
    for name, split in layout.splits.items():
        for part, place in split.places().items():
            if part == 'annotations' and not place.is_file():
                raise UserError(f'{source}: the annotation file of {name}, {place}, does not exist')
            if part != 'annotations' and not place.is_dir():
                raise UserError(f'{source}: the folder of the {part} of {name}, {place}, does not '
                                'exist')
    return layout


# -- a file ------------------------------------------------------------------------------------

def in_file(path: Path, kind: str) -> Layout:
    """What a YAML file says: paths are relative to its root, the root is relative to the file."""
    said = read_yaml(path)
    if yolo.describes(said):
        return in_yolo_file(path, said, kind)
    check_keys(path, said, {'root', 'classes', 'ignore', *SPLITS}, 'the file')
    if not isinstance(said.get('train'), dict):
        raise UserError(f'{path} says nothing of train, or not its parts; for {kind} it needs, '
                        f'e.g.\n  {EXAMPLE[kind]}')
    root = (path.parent / str(said.get('root', '.'))).resolve()
    splits = {}
    for name in SPLITS:
        if name not in said or said[name] is None:
            continue
        parts = said[name]
        check_keys(path, parts, set().union(*NEEDED.values()), name)
        for other, needed in NEEDED.items():
            if needed == parts.keys() and other != kind:
                raise UserError(of_another_kind(path, f'{name} has {", ".join(sorted(needed))}',
                                                other, kind))
        for part, place in parts.items():
            if not isinstance(place, str | int | float) or isinstance(place, bool):
                raise UserError(f'{path}: {part} of {name} is {shown(place)}, not one path')
        missing = NEEDED[kind] - parts.keys()
        if missing:
            raise UserError(f'{path}: {name} has no {" and no ".join(sorted(missing))}, which an '
                            f'experiment in {kind} needs: {EXAMPLE[kind]}')
        splits[name] = Split(**{part: root / str(parts[part]) for part in NEEDED[kind]})
    layout = Layout(kind, path, splits)
    if kind == SEGMENTATION:
        read_values(path, said, layout)
    elif said.get('classes') is not None:
        if not isinstance(said['classes'], list) or not said['classes']:
            raise UserError(f'{path}: classes is {shown(said["classes"])}, not a list of names')
        layout.classes = class_names(path, said['classes'])
    return layout


def of_another_kind(source: Path, found: str, is_for: str, kind: str) -> str:
    """The message for data of one kind that was given to an experiment of another."""
    (what, takers), (needed, _) = MEANING[is_for], MEANING[kind]
    turned = '' if (is_for, kind) != (DETECTION, SEGMENTATION) else (
        ' (masks of objects are not turned into label maps here)')
    return (f'{source} is data for {is_for} ({found}): {what}; {kind} needs '
            f'{needed}{turned}. Experiments that take this data: {takers}; to check it: '
            f'tools/check_data.py {source} --kind {is_for}')


def check_keys(path: Path, node, known: set, what: str):
    if not isinstance(node, dict):
        raise UserError(f'{path}: {what} is {shown(node)}, where names and values are expected '
                        '(docs/own_data.md)')
    for key in node:
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            raise UserError(f'{path}: {what} has {shown(key)}, which means nothing here'
                            + (f'; did you mean {close[0]!r}?' if close else
                               f'; known are {", ".join(sorted(known))}'))


UNLABELLED = 255  # for mmseg; one byte a pixel leaves 0..254 for classes


def read_values(path: Path, said: dict, layout: Layout):
    """Segmentation: what each value in a label map stands for.

    255 is ignored unless it is a class, or something else is said to be.
    """
    classes, ignore = said.get('classes'), said.get('ignore')
    if isinstance(classes, dict) and classes and all(map(is_value, classes)):
        names = {value: class_names(path, [classes[value]])[0] for value in sorted(classes)}
        layout.classes = tuple(dict.fromkeys(names.values()))  # values of one name are one class
        layout.values = {value: layout.classes.index(name) for value, name in names.items()}
    elif isinstance(classes, list) and classes:
        layout.classes = class_names(path, classes)
        layout.values = dict(enumerate(range(len(classes))))
    else:
        raise UserError(f'{path}: classes is {shown(classes)}; label maps hold numbers, so it has '
                        'to say what they mean: a list of different names for the values 0, 1, 2, '
                        '…, or {value: name} with values from 0 to 255')
    if len(layout.classes) > UNLABELLED:
        raise UserError(f'{path}: {len(layout.classes)} classes are more than the {UNLABELLED} '
                        'that label maps can tell apart: a pixel is a byte, 255 is unlabelled')
    if ignore is None:
        ignore = [] if UNLABELLED in layout.values else UNLABELLED
    layout.ignore = tuple(ignore) if isinstance(ignore, list) else (ignore, )
    if not all(map(is_value, layout.ignore)):
        raise UserError(f'{path}: ignore is {shown(ignore)}, not a label value (0 to 255) or a '
                        'list of them')
    both = sorted(set(layout.ignore) & layout.values.keys())
    if both:
        raise UserError(f'{path}: the label values {both} are classes and ignored')


def is_value(value) -> bool:
    """Whether it is what a pixel of a label map may have."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 255


# -- a folder ----------------------------------------------------------------------------------

# By layout: where the parts of a split lie (annotations, images, labels); {s} is one of the split's
# names, and where there is none, all of it is train. *.txt, *.xml, *.json are label files of
# annotation tools, each called as its image.
NAMES = dict(train=('train', 'training'), val=('val', 'valid', 'validation'), test=('test', ))
FOLDERS = {
    DETECTION: [
        ("COCO's layout", 'annotations/instances_{s}2017.json', '{s}2017', None),
        ("COCO's layout", 'annotations/instances_{s}.json', '{s}', None),
        ("COCO's layout", 'annotations/{s}.json', '{s}', None),
        ("COCO's layout", 'annotations/{s}.json', 'images/{s}', None),
        ("COCO's layout", '{s}.json', '{s}', None),
        ("COCO's layout", '{s}.json', 'images/{s}', None),
        ('an export of Roboflow', '{s}/_annotations.coco.json', '{s}', None),
        ('YOLO', None, 'images/{s}', 'labels/{s}/*.txt'),
        ('YOLO', None, '{s}/images', '{s}/labels/*.txt'),
        ('YOLO', None, 'images', 'labels/*.txt'),
        ('Pascal VOC', None, 'JPEGImages', 'Annotations/*.xml'),
        ('Pascal VOC', None, 'images/{s}', 'annotations/{s}/*.xml'),
        ('Pascal VOC', None, 'images', 'annotations/*.xml'),
        ('Pascal VOC', None, '{s}', '{s}/*.xml'),
        ('Pascal VOC', None, '.', '*.xml'),
        ('LabelMe', None, '{s}', '{s}/*.json'),
        ('LabelMe', None, '.', '*.json'),
    ],
    SEGMENTATION: [
        ("ADE20K's layout", None, 'images/{s}', 'annotations/{s}'),
        ('images and labels', None, 'images/{s}', 'labels/{s}'),
        ('images and masks', None, 'images/{s}', 'masks/{s}'),
    ],
    PANOPTIC: [
        ("COCO's layout", 'annotations/panoptic_{s}2017.json', '{s}2017',
         'annotations/panoptic_{s}2017'),
        ("COCO's layout", 'annotations/panoptic_{s}.json', '{s}', 'annotations/panoptic_{s}'),
    ],
}


def in_folder(root: Path, kind: str) -> Layout:
    """The layout of a folder's train, and those of the other splits that are there too.

    Raises:
        UserError: none of the known ones fits; all are named.
    """
    root = root.resolve()
    for found, *parts in FOLDERS[kind]:
        if found == 'YOLO' and (file := yolo.file_in(root)):
            return in_yolo_file(file, read_yaml(file), kind)
        splits = splits_in(root, *parts)
        if 'train' not in splits:
            continue
        layout = Layout(kind, root, splits, found=found)
        if kind == SEGMENTATION:
            read_class_file(layout)
        layout.suffix = Path(parts[-1]).suffix if parts[-1] else ''
        train = splits['train']
        if found == 'YOLO':
            set_names(layout, yolo.names_beside(root, train.labels))
        if found == 'Pascal VOC':
            for split, files in voc.image_sets(root, train.images).items():
                splits[split] = Split(train.images, None, train.labels, files)
        return layout
    expected = '\n  '.join(', '.join(part.format(s='train') for part in parts
                                     if part and part != '.') for _, *parts in FOLDERS[kind])
    for other in FOLDERS:
        if other != kind and (found := looks_like(root, other)):
            raise UserError(of_another_kind(root, found, other, kind))
    raise UserError(f'--data {root}: for {kind} the folder should have one of\n  {expected}\n'
                    'or be described by a .yaml file (docs/own_data.md)')


def looks_like(root: Path, kind: str) -> str:
    """The name of the layout that a folder has among those of a kind, '' for none."""
    if kind == DETECTION and any(root.glob('*.y*ml')) and yolo.file_in(root):
        return 'YOLO'
    return next((found for found, *parts in FOLDERS[kind] if 'train' in splits_in(root, *parts)),
                '')


def splits_in(root: Path, annotations: str | None, images: str, labels: str | None
              ) -> dict[str, Split]:
    """The splits of which a folder has all parts; the parts are those of a row of FOLDERS."""
    splits = {}
    for split, names in NAMES.items() if '{s}' in images else [('train', ('', ))]:
        for name in names:
            file, pictures, maps = (part and root / part.format(s=name)
                                    for part in (annotations, images, labels))
            if not pictures.is_dir() or file and not file.is_file():
                continue
            if maps and maps.suffix:
                found = has_labels(pictures, maps.parent, maps.suffix)
                maps = maps.parent
            else:  # label maps; YOLO's labels lie in a folder of the same name
                found = not maps or maps.is_dir() and (not any(files_in(maps)) or any(
                    path.suffix.lower() in IMAGES for path in files_in(maps)))
            if found:
                splits.setdefault(split, Split(pictures, file, maps))
    return splits


def has_labels(images: Path, labels: Path, suffix: str) -> bool:
    """Whether a file has an image's name; others (a list of classes, notes) lie about anywhere."""
    names = {path.relative_to(labels).with_suffix('') for path in files_in(labels)
             if path.suffix == suffix} if labels.is_dir() else set()
    return bool(names) and any(path.relative_to(images).with_suffix('') in names
                               for path in images_in(images))


def in_yolo_file(path: Path, said: dict, kind: str) -> Layout:
    """What Ultralytics' data.yaml says, whose places are there or are those of its own folder.

    Raises:
        UserError: the experiment learns no boxes, or the images are at neither place.
    """
    if kind != DETECTION:
        raise UserError(of_another_kind(path, 'YOLO', DETECTION, kind))
    files, notes, absent = yolo.images_of(path, said)
    layout = Layout(kind, path, {}, found='YOLO', suffix='.txt', notes=notes,
                    keypoints=yolo.numbers_after_box(path, said))
    set_names(layout, yolo.read_names(path, said))
    if absent:
        layout.splits = next((splits for found, *parts in FOLDERS[kind] if found == 'YOLO' and
                              'train' in (splits := splits_in(path.parent, *parts))), None)
        if not layout.splits:
            raise UserError(absent)
        notes.append(f'{absent}; its own folder is taken, which has images and labels')
    for name, images in files.items() if not absent else ():
        common = Path(os.path.commonpath([image.parent for image in images]))
        layout.splits[name] = Split(common, files=images)
    return layout


def set_names(layout: Layout, names: dict[int, str]):
    layout.classes = tuple(names.values())
    layout.values = {number: index for index, number in enumerate(names)}


def read_class_file(layout: Layout):
    """The names of label values beside a folder of label maps: classes.txt, one name a line.

    A folder in ADE20K's layout without one is taken for ADE20K, whose classes experiments know.
    """
    file = layout.source / 'classes.txt'
    if not file.is_file() and layout.found.startswith('ADE20K'):
        return
    if not file.is_file():
        raise UserError(f'--data {layout.source}: label maps hold numbers, so somebody has to say '
                        'what they mean: put the names of the values 0, 1, 2, … into '
                        f'{file}, one a line, or describe the data in a .yaml file '
                        '(docs/own_data.md)')
    read_values(file, {'classes': read_list(file)}, layout)

