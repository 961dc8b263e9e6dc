"""``--data``: an experiment on a data set of one's own, without a config of one's own."""
import colorsys
import copy
import hashlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from mmengine.config import Config

from ..errors import UserError, one_line, printable
from .checks import OTHER_CLASSES
from .coco import CocoCheck, read_coco
from .files import images_in, write_json
from .findings import Finding, stop_at_errors
from .foreign import to_coco
from .label_maps import MOST_READ, LabelMaps, MapsCheck
from .layouts import DETECTION, PANOPTIC, SEGMENTATION, Layout, Split, find_layout
from .parts import LOADERS, leaves, metrics_of, steps_of
from .segments import PanopticCheck

# What the experiments' files are written with and no run reads; it would tell of the other data.
VARIABLES = 'data_root', 'metainfo', 'train_pipeline', 'test_pipeline', 'dataset'
PREPARED = 'data'  # the folder in the work dir for annotations that had to be put right


def use_data(cfg: Config, source: str, val_split: float = 0.) -> list[str]:
    """Let an experiment train and test on other data.

    Every head, data set, evaluator and pipeline of the config is fitted; what had to be put right
    in annotations lies in the work dir.

    Args:
        cfg: the experiment, with its work_dir; changed in place.
        source: a YAML file that describes the data, or a folder in a known layout.
        val_split: share of the training images to score on, where there are no others.

    Returns:
        The lines to log: what was understood, put right, left out.

    Raises:
        UserError: the data is not what the experiment needs, or has mistakes.
    """
    kind = kind_of_experiment(cfg)
    layout = find_layout(source, kind)
    notes = [str(layout), *layout.notes]
    Path(cfg.work_dir, PREPARED).mkdir(parents=True, exist_ok=True)
    if layout.suffix:
        more, findings = to_coco(layout, Path(cfg.work_dir, PREPARED).absolute())
        notes += more + stop_at_errors(findings)
    for key in (f'{split}_{part}' for split in ('val', 'test') for part in
                ('dataloader', 'evaluator')):
        cfg[key] = copy.deepcopy(cfg.get(key))  # experiments test on their validation set
    if 'val' in layout.splits and val_split:
        raise UserError(f'--val-split {val_split:g}: {source} has images for validation; leave '
                        '--val-split out to score on those')
    if val_split:
        hold_out(layout, val_split, Path(cfg.work_dir, PREPARED))
        notes.append(f'{val_split:g} of the training images, chosen by the hash of their names, '
                     'are for validation')
    notes += FITTERS[kind](cfg, layout)
    notes += fit_splits(cfg, layout)
    for key in VARIABLES:
        cfg.pop(key, None)
    # A small set is trained with other batches than eight GPUs': the rate follows.
    if 'base_batch_size' in (cfg.get('auto_scale_lr') or {}):
        cfg.auto_scale_lr.enable = True
    return in_lines(notes)


def in_lines(notes: list[str]) -> list[str]:
    """Notes as a log takes them, the first of which has several lines; names may hold anything."""
    return [printable(notes[0]), *map(one_line, notes[1:])]


@dataclass
class Examined:
    """What a data set was understood as, and what is wrong with it.

    Attributes:
        lines: what was understood, counted and put right.
        checks: of each split; none where its labels could not be read.
    """
    layout: Layout
    lines: list[str]
    findings: list[Finding]
    checks: dict[str, CocoCheck | MapsCheck]


def examine(source: str, kind: str) -> Examined:
    """What --data would say of a data set, without an experiment.

    Args:
        source: a YAML file that describes the data, or a folder in a known layout.
        kind: 'detection', 'segmentation' or 'panoptic'.

    Raises:
        UserError: the data cannot be understood at all.
    """
    layout = find_layout(source, kind)
    lines, findings, checks = [str(layout), *layout.notes], [], {}
    if kind == SEGMENTATION:
        if not layout.classes:
            raise UserError(f'{source} is ADE20K, whose classes the experiments know')
        for name, split in layout.splits.items():
            checks[name] = MapsCheck(label_maps(split), table(layout), most=None)
            lines.append(f'{name}: {len(checks[name].listed):,} images, '
                         f'{len(layout.classes)} classes')
            findings += checks[name].findings
        return Examined(layout, in_lines(lines), findings, checks)
    with TemporaryDirectory() as folder:
        if layout.suffix:
            more, findings = to_coco(layout, Path(folder))
            lines += more
            if any(finding.error for finding in findings):
                return Examined(layout, in_lines(lines), findings, checks)
        checks = check_panoptic(layout, None) if kind == PANOPTIC else check_splits(layout)
    for name, check in checks.items():
        objects = check.objects()
        counts = Counter(found['category_id'] for found in objects)
        number = (f'{len(objects):,} segments' if kind == PANOPTIC else f'{len(objects):,} '
                  f'objects, {len(check.with_mask):,} of them with a mask')
        lines += [f'{name}: {len(check.images):,} images, {number}', *check.notes]
        lines += [f'  {category["name"]:24} {counts[category["id"]]:8,}'
                  + ' stuff' * (category.get('isthing') == 0)
                  for category in check.content['categories']]
        findings += check.findings
    return Examined(layout, in_lines(lines), findings, checks)


def kind_of_experiment(cfg: Config) -> str:
    if cfg.get('default_scope') == 'mmseg':
        return SEGMENTATION
    return PANOPTIC if 'panoptic_head' in cfg.model else DETECTION


# -- validation images out of the training images ----------------------------------------------

def held_out(names: list[str], share: float) -> set[str]:
    """The images that are for validation: by their names' hashes, so that more move none of them.

    Of a small set at least one, and at least one is left.

    Raises:
        UserError: there are not two images.
    """
    places = {name: int.from_bytes(hashlib.sha256(Path(name).stem.encode()).digest()[:8], 'big')
              / 2**64 for name in names}
    order = sorted(names, key=places.__getitem__)
    if len(order) < 2:
        raise UserError(f'--val-split {share:g}: there are too few images to hold some out')
    count = sum(place < share for place in places.values())
    return set(order[:min(max(count, 1), len(order) - 1)])


def hold_out(layout: Layout, share: float, folder: Path):
    """Split train by the images' names into train and val."""
    train = layout.splits['train']
    if layout.kind == SEGMENTATION:
        names = [path.relative_to(train.images).as_posix() for path in images_in(train.images)]
        chosen = held_out(names, share)
        for split in ('train', 'val'):
            file = folder / f'{split}.txt'
            file.write_text(''.join(f'{name}\n' for name in names
                                    if (name in chosen) == (split == 'val')))
            layout.splits[split] = Split(train.images, file, train.labels)
        return
    content = read_coco(train.annotations, layout.kind == PANOPTIC)
    chosen = held_out([image['file_name'] for image in content['images']], share)
    for split in ('train', 'val'):
        images = [image for image in content['images']
                  if (image['file_name'] in chosen) == (split == 'val')]
        ids = {image['id'] for image in images}
        file = folder / f'{split}_split.json'
        write_json(file, dict(content, images=images, annotations=[
            a for a in content['annotations'] if a['image_id'] in ids]))
        layout.splits[split] = Split(train.images, file, train.labels)


# -- detection ---------------------------------------------------------------------------------

def check_splits(layout: Layout) -> dict[str, CocoCheck]:
    """The annotations of each split; the classes are those of the first, which is train."""
    classes, checks = layout.classes, {}
    for name, split in layout.splits.items():
        said_in = split.labels or split.annotations  # (an annotation tool's folder)
        checks[name] = CocoCheck(read_coco(split.annotations), said_in, split.images, classes)
        classes = checks[name].classes
    return checks


def fit_detection(cfg: Config, layout: Layout) -> list[str]:
    """Boxes, and masks where the experiment learns them and the data has them."""
    learns_masks = any(step.get('with_mask') for step in steps_of(cfg, 'LoadAnnotations'))
    checks = check_splits(layout)
    notes = [note for check in checks.values() for note in check.notes]
    findings = []
    masks = any(check.with_mask for check in checks.values())
    for check in checks.values():
        if learns_masks and masks:
            check.require_masks()
        findings += check.findings
    notes += stop_at_errors(findings)
    if learns_masks and not masks:
        without_masks(cfg)
        notes.append(f'No object has a mask: {cfg.model.type} is trained on boxes alone.')
    keep_orientation(cfg, checks)
    classes = checks['train'].classes
    metainfo = dict(classes=classes, palette=palette(len(classes)))
    for name, check in checks.items():
        file = write(cfg, name, check.content)
        set_paths(cfg, name, ann_file=str(file), metainfo=metainfo,
                  data_prefix=dict(img=f'{check.folder}/'))
        for metric in metrics_of(cfg, name):
            metric.ann_file = str(file)
    fit_heads(cfg.model, num_classes=len(classes))
    return notes


def keep_orientation(cfg: Config, checks: dict[str, CocoCheck]):
    """Load images as they are stored where their labels lie on them so.

    Raises:
        UserError: labels of some splits do, those of others do not.
    """
    if not any(check.stored for check in checks.values()):
        return
    if any(check.turned for check in checks.values()):
        raise UserError('the labels of some splits lie on images as stored, those of others as '
                        'EXIF turns them: store the images turned')
    for step in steps_of(cfg, 'LoadImageFromFile'):
        step.color_type = 'color_ignore_orientation'


def write(cfg: Config, name: str, content: dict) -> Path:
    """Keep annotations in the work dir."""
    return write_json(Path(cfg.work_dir, PREPARED, f'{name}.json').absolute(), content)


def without_masks(cfg: Config):
    """Mask R-CNN as Faster R-CNN, a cascade with masks as one without."""
    model = cfg.model
    if model.type == 'MaskRCNN':
        model.type = 'FasterRCNN'
    for part in ('mask_roi_extractor', 'mask_head'):
        model.roi_head.pop(part, None)
    model.data_preprocessor.pop('pad_mask', None)
    for step in steps_of(cfg, 'LoadAnnotations'):
        step.with_mask = False
    for split in LOADERS:
        for metric in metrics_of(cfg, split):
            if metric.type.endswith('CocoMetric'):
                metric.metric = 'bbox'


# -- segmentation ------------------------------------------------------------------------------

def fit_segmentation(cfg: Config, layout: Layout) -> list[str]:
    """Label maps, whose values stand for what the layout says."""
    if not layout.classes:  # ADE20K itself
        for name, split in layout.splits.items():
            set_paths(cfg, name, data_prefix=dict(
                img_path=str(split.images), seg_map_path=str(split.labels)))
        return ["The classes are the experiment's own."]
    metainfo = dict(classes=layout.classes, palette=palette(len(layout.classes)))
    for name, split in layout.splits.items():
        set_paths(cfg, name, type='LabelMaps', metainfo=metainfo,
                  ann_file=str(split.annotations or ''), drop=('img_suffix', 'seg_map_suffix',
                                                              'reduce_zero_label'),
                  data_prefix=dict(img_path=str(split.images), seg_map_path=str(split.labels)))
    for step in steps_of(cfg, 'LoadLabels'):
        step['values'] = table(layout)  # (a dict's own method has that name)
    fit_heads(cfg.model, num_classes=len(layout.classes))
    return stop_at_errors([finding for split in layout.splits.values()
                           for finding in MapsCheck(label_maps(split), table(layout)).findings])


def label_maps(split: Split) -> LabelMaps:
    return LabelMaps(ann_file=str(split.annotations or ''), lazy_init=True, data_prefix=dict(
        img_path=str(split.images), seg_map_path=str(split.labels)))


def table(layout: Layout) -> dict[int, int]:
    """{value in a label map: class number, or 255 for unlabelled}."""
    return {**layout.values, **dict.fromkeys(layout.ignore, 255)}


# -- panoptic ----------------------------------------------------------------------------------

def check_panoptic(layout: Layout, most: int | None = MOST_READ) -> dict[str, PanopticCheck]:
    """The annotations and maps of each split; the classes are those of the first, which is train.

    Args:
        most: how many maps of a split are decoded, None for all.
    """
    checks = {}
    for name, split in layout.splits.items():
        content = read_coco(split.annotations, panoptic=True)
        checks[name] = PanopticCheck(content, split.annotations, split.images, split.labels,
                                     checks.get('train'), most)
    return checks


def fit_panoptic(cfg: Config, layout: Layout) -> list[str]:
    """Things first among the classes, then stuff, as panoptic heads number them."""
    checks = check_panoptic(layout)
    notes = [note for check in checks.values() for note in check.notes]
    notes += stop_at_errors([found for check in checks.values() for found in check.findings])
    keep_orientation(cfg, checks)
    classes, things = checks['train'].classes, checks['train'].things
    stuff = tuple(name for name in classes if name not in things)
    metainfo = dict(classes=classes, thing_classes=things, stuff_classes=stuff,
                    palette=palette(len(classes)))
    for name, check in checks.items():
        split = layout.splits[name]
        file = write(cfg, name, check.content)
        set_paths(cfg, name, type='PanopticMaps', ann_file=str(file), metainfo=metainfo,
                  data_prefix=dict(img=f'{split.images}/', seg=f'{split.labels}/'))
        for metric in metrics_of(cfg, name):
            if metric.type == 'PanopticQuality':
                metric.update(ann_file=str(file), seg_prefix=f'{split.labels}/')
            elif metric.type.endswith('CocoMetric'):
                # Boxes and masks are scored with a file of their own, made from the maps.
                metric.ann_file = str(write(cfg, f'{name}_instances', check.instances()))
    fit_heads(cfg.model, num_things_classes=len(things), num_stuff_classes=len(stuff))
    return [f'{len(things)} kinds of things, {len(stuff)} of stuff', *notes]


FITTERS = {DETECTION: fit_detection, SEGMENTATION: fit_segmentation, PANOPTIC: fit_panoptic}


# -- the config's parts ------------------------------------------------------------------------

def fit_heads(node, **numbers: int):
    """Set the numbers of classes of all heads below, and weights that are one for each class."""
    for key, value in node.items():
        if key in OTHER_CLASSES:
            continue
        for part in value if isinstance(value, list | tuple) else [value]:
            if not isinstance(part, dict):
                continue
            if key.endswith('head'):
                part.update({name: number for name, number in numbers.items() if name in part})
                loss = part.get('loss_cls') or {}
                if isinstance(loss.get('class_weight'), list):  # the last is for "no object"
                    loss['class_weight'] = [1.] * sum(numbers.values()) + loss['class_weight'][-1:]
            fit_heads(part, **numbers)


def set_paths(cfg: Config, split: str, drop=(), **values):
    """Entries of a split's data set; paths are whole."""
    loader = cfg.get(LOADERS[split])
    if not loader:
        return
    for dataset in leaves(loader.dataset):
        for key in ('indices', *drop):
            dataset.pop(key, None)
        dataset.data_root = ''
        for key, value in values.items():
            dataset[key] = value


def fit_splits(cfg: Config, layout: Layout) -> list[str]:
    """Do without what the data does not have: no validation, or no test set of its own."""
    if 'val' in layout.splits and 'test' not in layout.splits:
        cfg.test_dataloader = copy.deepcopy(cfg.val_dataloader)
        cfg.test_evaluator = copy.deepcopy(cfg.val_evaluator)
    if 'val' in layout.splits:
        return []
    for key in ('val_dataloader', 'val_evaluator', 'val_cfg'):
        cfg[key] = None
    cfg.default_hooks.checkpoint.pop('save_best', None)
    cfg.default_hooks.checkpoint.pop('rule', None)
    if 'test' not in layout.splits:
        for key in ('test_dataloader', 'test_evaluator', 'test_cfg'):
            cfg[key] = None
    return [f'{layout.source} has no val: nothing is scored in training. --val-split 0.1 scores on '
            'a tenth of the training images and trains without them.']


def palette(count: int) -> list[tuple[int, int, int]]:
    """A colour for each class, (R, G, B), as far apart as so many can be.

    (mmdet's visualizer takes tuples alone.)
    """
    colors = []
    for i in range(count):
        hue, ring = i * 0.618034 % 1, i // 12 % 3
        colors.append(tuple(round(255 * part) for part in
                            colorsys.hsv_to_rgb(hue, 0.85 - 0.2 * ring, 0.95 - 0.2 * ring)))
    return colors


