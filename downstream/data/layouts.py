"""Where the parts of a data set of one's own lie: said in a YAML file, or found in a folder."""
import difflib
from dataclasses import dataclass, field
from pathlib import Path

from ruamel.yaml import YAML, YAMLError

from ..errors import UserError

SPLITS = 'train', 'val', 'test'
IMAGES = '.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp'
DETECTION, SEGMENTATION, PANOPTIC = 'detection', 'segmentation', 'panoptic'
# What each part of a split is called in the file, by the kind of data.
NEEDED = {DETECTION: {'annotations', 'images'}, SEGMENTATION: {'images', 'labels'},
          PANOPTIC: {'annotations', 'images', 'labels'}}
EXAMPLE = {
    DETECTION: 'train: {annotations: train.json, images: train}',
    SEGMENTATION: 'train: {images: images/train, labels: labels/train}',
    PANOPTIC: 'train: {annotations: panoptic_train.json, images: train, labels: panoptic_train}',
}


@dataclass
class Split:
    """The places of one split: ``annotations`` is a file, the others are folders."""
    images: Path
    annotations: Path | None = None
    labels: Path | None = None


@dataclass
class Layout:
    """A data set of one's own.

    Attributes:
        kind: 'detection', 'segmentation' or 'panoptic'.
        source: the file or folder that was named.
        splits: by name; 'train' is there.
        classes: their names in the order of their numbers; () where the annotations say them.
        values: segmentation: {value in a label map: class number}.
        ignore: segmentation: values that count as unlabelled.
        found: in words, as what a folder was understood.
    """
    kind: str
    source: Path
    splits: dict[str, Split]
    classes: tuple[str, ...] = ()
    values: dict[int, int] = field(default_factory=dict)
    ignore: tuple[int, ...] = (255, )
    found: str = ''

    def __str__(self):
        lines = [f'{self.source}: {self.kind}' + (f', {self.found}' if self.found else '')]
        for name, split in self.splits.items():
            parts = ', '.join(f'{part} {path}' for part, path in vars(split).items() if path)
            lines.append(f'{name}: {parts}')
        return '\n  '.join(lines)


def find_layout(source: str, kind: str) -> Layout:
    """The layout of a data set.

    Args:
        source: a YAML file, or a folder in a known layout.
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
        for part, place in vars(split).items():
            if place is None:
                continue
            if part == 'annotations' and not place.is_file():
                raise UserError(f'{source}: the annotation file of {name}, {place}, does not exist')
            if part != 'annotations' and not place.is_dir():
                raise UserError(f'{source}: the folder of the {part} of {name}, {place}, does not '
                                'exist')
    return layout


# -- a file ------------------------------------------------------------------------------------

def in_file(path: Path, kind: str) -> Layout:
    """What a YAML file says: paths are relative to its root, the root is relative to the file."""
    try:
        # YAML 1.2, in which a class may be called `no`
        said = YAML(typ='safe').load(path.read_text(encoding='utf-8-sig'))
    except (YAMLError, UnicodeDecodeError) as error:
        words = ' '.join(str(error).split())
        raise UserError(f'{path} is not a YAML file: {words}') from None
    check_keys(path, said, {'root', 'classes', 'ignore', *SPLITS}, 'the file')
    if not isinstance(said.get('train'), dict):
        raise UserError(f'{path} says nothing of train; for {kind} it needs, e.g.\n'
                        f'  {EXAMPLE[kind]}')
    root = (path.parent / str(said.get('root', '.'))).resolve()
    splits = {}
    for name in SPLITS:
        if name not in said or said[name] is None:
            continue
        parts = said[name]
        check_keys(path, parts, set().union(*NEEDED.values()), name)
        missing = NEEDED[kind] - parts.keys()
        if missing:
            raise UserError(f'{path}: {name} has no {" and no ".join(sorted(missing))}, which an '
                            f'experiment in {kind} needs: {EXAMPLE[kind]}')
        splits[name] = Split(**{part: root / str(parts[part]) for part in NEEDED[kind]})
    layout = Layout(kind, path, splits)
    if kind == SEGMENTATION:
        read_values(path, said, layout)
    elif said.get('classes'):
        if not is_names(said['classes']):
            raise UserError(f'{path}: classes is {said["classes"]!r}, not a list of names')
        layout.classes = tuple(said['classes'])
    return layout


def check_keys(path: Path, node, known: set, what: str):
    if not isinstance(node, dict):
        raise UserError(f'{path}: {what} is {node!r}, where names and values are expected '
                        '(docs/own_data.md)')
    for key in node:
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            raise UserError(f'{path}: {what} has {key!r}, which means nothing here'
                            + (f'; did you mean {close[0]!r}?' if close else
                               f'; known are {", ".join(sorted(known))}'))


def is_names(node) -> bool:
    return isinstance(node, list) and node and all(isinstance(name, str) for name in node)


def read_values(path: Path, said: dict, layout: Layout):
    """Segmentation: what each value in a label map stands for."""
    classes, ignore = said.get('classes'), said.get('ignore', 255)
    if isinstance(classes, dict) and classes and all(
            isinstance(value, int) and isinstance(name, str) for value, name in classes.items()):
        # Values that have one name are one class.
        layout.classes = tuple(dict.fromkeys(classes[value] for value in sorted(classes)))
        layout.values = {value: layout.classes.index(name) for value, name in classes.items()}
    elif is_names(classes) and len(set(classes)) == len(classes):
        layout.classes = tuple(classes)
        layout.values = dict(enumerate(range(len(classes))))
    else:
        raise UserError(f'{path}: classes is {classes!r}; label maps hold numbers, so it has to '
                        'say what they mean: a list of different names for the values 0, 1, 2, …, '
                        'or {value: name}')
    layout.ignore = tuple(ignore) if isinstance(ignore, list) else (ignore, )
    if not all(isinstance(value, int) and 0 <= value <= 255 for value in layout.ignore):
        raise UserError(f'{path}: ignore is {ignore!r}, not a label value or a list of them')
    both = sorted(set(layout.ignore) & layout.values.keys() - {255})
    if both:
        raise UserError(f'{path}: the label values {both} are classes and ignored')


# -- a folder ----------------------------------------------------------------------------------

# By layout: where the parts of a split lie; {s} is one of the split's names.
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
        splits = {}
        for split, names in NAMES.items():
            for name in names:
                annotations, images, labels = (part and root / part.format(s=name)
                                               for part in parts)
                if (images.is_dir() and (annotations is None or annotations.is_file())
                        and (labels is None or labels.is_dir())):
                    splits.setdefault(split, Split(images, annotations, labels))
        if 'train' in splits:
            layout = Layout(kind, root, splits, found=found)
            if kind == SEGMENTATION:
                read_class_file(layout)
            return layout
    expected = '\n  '.join(', '.join(part.format(s='train') for part in parts if part)
                           for _, *parts in FOLDERS[kind])
    other = next((f'. It looks like data for {wanted}' for wanted in FOLDERS if wanted != kind
                  and recognised(root, wanted)), '')
    raise UserError(f'--data {root}: for {kind} the folder should have one of\n  {expected}\n'
                    f'or be described by a .yaml file (docs/own_data.md){other}')


def recognised(root: Path, kind: str) -> bool:
    return any(all((root / part.format(s=name)).exists() for part in parts if part)
               for _, *parts in FOLDERS[kind] for name in NAMES['train'])


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
    names = [line.strip() for line in file.read_text(encoding='utf-8-sig').splitlines()]
    read_values(file, {'classes': [name for name in names if name]}, layout)
