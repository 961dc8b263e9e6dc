"""Checks of the data a run will read, made before its model is built."""
import functools
import json
import os
import re
import textwrap
from pathlib import Path

from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS, init_default_scope

from ..errors import UserError
from .files import listed
from .parts import leaves, metrics_of


def check_data(cfg, *splits, truth=True, checked=False):
    """Check the data sets (and evaluators) of the splits, e.g. 'train', 'val'.

    Files are listed once a folder and annotation files read once, by the first process only.

    Args:
        truth: whether ground truth must be there; otherwise a list of images will do.
        checked: whether files of boxes and masks come from use_data, which has looked into them
            more closely than is done here: they may be large, and are not read again.

    Raises:
        UserError: something is missing or does not fit together.
    """
    if int(os.environ.get('RANK', os.environ.get('SLURM_PROCID', 0))) != 0:
        return
    init_default_scope(cfg.get('default_scope') or 'mmengine')
    found = [(f'{split}_dataloader', dataset) for split in splits if cfg.get(f'{split}_dataloader')
             for dataset in leaf_datasets(cfg[f'{split}_dataloader'].dataset)]
    for where, dataset in found:
        same_root = [other for _, other in found if other.data_root == dataset.data_root]
        try:
            check_paths(dataset)
            check_content(dataset, truth, checked)
        except UserError as error:
            raise UserError(f'{where}: {error}\n{hint(cfg, dataset, same_root)}') from None
        check_heads(cfg.get('model', {}), dataset, where)
    for split in splits:
        for metric in metrics_of(cfg, split):
            ann_file = metric.get('ann_file')
            if ann_file and '://' not in ann_file and not os.path.isfile(ann_file):
                raise UserError(f'{split}_evaluator: its annotation file {ann_file} does not '
                                'exist; it should be the one of the data set it scores')


def leaf_datasets(cfg):
    """The data sets behind a config's wrappers, built but not read: with their paths resolved."""
    return [dataset for leaf in leaves(cfg) for dataset in built(leaf)]


def built(cfg):
    """One data set, or none where it is of a kind that is not checked here."""
    try:
        with DATASETS.switch_scope_and_registry(cfg.get('_scope_')) as registry:
            kind = cfg.type if isinstance(cfg.type, type) else registry.get(cfg.type)
        if kind is not None and not issubclass(kind, BaseDataset):
            return []
        return [DATASETS.build({**cfg, 'lazy_init': True, 'pipeline': []})]
    except ValueError as error:  # mmseg, about the classes in metainfo
        raise UserError(f'{cfg.type}: {textwrap.shorten(str(error), 400)}') from None


def folders(dataset):
    """{key: path} of the folders in data_prefix; a prefix that was left empty names none."""
    return {key: path for key, path in dataset.data_prefix.items()
            if path and path.rstrip('/') != str(dataset.data_root or '').rstrip('/')}


def hint(cfg, dataset, same_root):
    """What the config expects, and how to say where it is."""
    expected = sorted({path for other in same_root
                       for path in [other.ann_file, *(f'{folder.rstrip("/")}/' for folder in
                                                      folders(other).values())] if path})
    text = 'The config reads:\n  ' + '\n  '.join(expected) + '\n'
    # The config's text still has {{$VARIABLE:default}} where mmengine has put the value.
    for name, default in re.findall(r'\{\{[\'"]?\s*\$(\w+)\s*:\s*(\S*?)\s*[\'"]?\}\}', cfg.text):
        root = os.environ.get(name, default)
        if root and str(dataset.data_root or '').startswith(root):
            state = f'now {root}' if name in os.environ else f'not set, so {root} is used'
            text += (f'These paths begin with the environment variable {name} ({state}): set it '
                     'to where your data is. ')
            break
    return text + ('docs/datasets.md says how to get the data; tools/prepare_data.py fetches COCO, '
                   'ADE20K and Objects365.')


def check_paths(dataset):
    if '://' in str(dataset.data_root):
        return
    if dataset.data_root and not os.path.isdir(dataset.data_root):
        raise UserError(f'the data folder {dataset.data_root} does not exist')
    if dataset.ann_file and not os.path.isfile(dataset.ann_file):
        raise UserError(f'the annotation file {dataset.ann_file} does not exist')
    for key, folder in folders(dataset).items():
        if not os.path.isdir(folder):
            raise UserError(f'the folder {folder} (data_prefix.{key}) does not exist')
        with os.scandir(folder) as entries:
            if next(entries, None) is None:
                raise UserError(f'the folder {folder} (data_prefix.{key}) is empty')


def check_content(dataset, truth, checked=False):
    """The deep checks, for the kinds of data sets that the configs here use."""
    kinds = {kind.__name__ for kind in type(dataset).__mro__}
    if '://' in str(dataset.data_root):
        return
    if 'CocoDataset' in kinds and not (checked and 'CocoPanopticDataset' not in kinds):
        check_coco(dataset, 'CocoPanopticDataset' in kinds, truth)
    elif 'BaseSegDataset' in kinds:
        check_segmentation(dataset)
    elif 'LabelMaps' in kinds:
        dataset.load_data_list()


# What every entry of a COCO annotation file needs.
COCO_KEYS = dict(images=('id', 'file_name', 'width', 'height'), categories=('id', 'name'),
                 annotations=('image_id', 'category_id', 'bbox', 'area'))
# A panoptic one describes each image's map instead, and says which categories are things.
PANOPTIC_KEYS = dict(COCO_KEYS, categories=('id', 'name', 'isthing'),
                     annotations=('image_id', 'file_name', 'segments_info'))
SEGMENT_KEYS = ('id', 'category_id', 'bbox', 'area', 'iscrowd')


def check_coco(dataset, panoptic=False, truth=True):
    path = dataset.ann_file
    try:
        with open(path, encoding='utf-8') as file:
            content = json.load(file)
    except ValueError as error:
        raise UserError(f'the annotation file {path} is not JSON, or not all of it ({error})'
                        ) from None
    lists = ('images', 'annotations', 'categories') if truth else ('images', 'categories')
    lacking = [key for key in lists
               if not isinstance(content, dict) or not isinstance(content.get(key), list)]
    if lacking:
        raise UserError(f'the annotation file {path} is not in COCO format: no list of '
                        f'{", ".join(lacking)}')
    for key in lists[:-1]:
        if not content[key]:
            raise UserError(f'the annotation file {path} lists no {key}')
    for key, needed in (PANOPTIC_KEYS if panoptic and truth else COCO_KEYS).items():
        if key in lists:
            check_entries(content[key], needed, key, path)
    names = [image['file_name'] for image in content['images']]
    if type(dataset).__name__ == 'Objects365V2Dataset':
        names = listed(names)
    check_all_there(dataset.data_prefix.get('img') or '', names, f'images listed in {path}')
    if not truth:
        return
    segments = content['annotations']
    if panoptic:
        segments = [segment for annotation in segments for segment in annotation['segments_info']]
        check_entries(segments, SEGMENT_KEYS, 'all segments_info', path)

    classes = dataset.metainfo.get('classes') or ()
    categories = [category['name'] for category in content['categories']]
    absent = [name for name in classes if name not in categories]
    if absent:
        raise UserError(
            f'the config has {len(classes)} classes, {path} has {len(categories)} categories '
            f'({some(categories)}), and {len(absent)} of the classes are not among them: '
            f'{some(absent)}; set metainfo.classes of the data set (and num_classes of the heads)')
    # mmdet numbers the classes in the file's order, whatever order metainfo has.
    order = [name for name in categories if name in classes]
    if order != list(classes):
        raise UserError(f'the annotation file {path} lists the categories in the order '
                        f'{some(order)}, the config its classes as {some(classes)}: set '
                        "metainfo.classes of the data set in the file's order")
    if panoptic:
        check_things(dataset, content['categories'])

    ids = {category['id'] for category in content['categories']}
    unknown = {segment['category_id'] for segment in segments} - ids
    if unknown:
        raise UserError(f'the annotation file {path} has annotations of categories that it does '
                        f'not define: ids {some(sorted(unknown))}')

    if panoptic and (maps := folders(dataset).get('seg')):
        # mmdet finds a map by its image's name, the metric by its own.
        names = {image.get('map') or image['file_name'].replace('.jpg', '.png')
                 for image in content['images']}
        names.update(annotation['file_name'] for annotation in content['annotations'])
        check_all_there(maps, sorted(names), f'panoptic maps of the images listed in {path}')


def check_entries(entries, needed, key, path):
    for number, entry in enumerate(entries):
        lacking = [name for name in needed if not isinstance(entry, dict) or name not in entry]
        if lacking:
            hint = ('; it is a panoptic file, the data set reads boxes'
                    if isinstance(entry, dict) and 'segments_info' in entry else '')
            raise UserError(f'the annotation file {path} is not in the format that the data set '
                            f'reads: entry {number} of {key} has no {", ".join(lacking)}{hint}')


def check_things(dataset, categories):
    """Things come first among the classes: panoptic heads number them so."""
    classes = list(dataset.metainfo['classes'])
    things, stuff = (list(dataset.metainfo.get(f'{kind}_classes') or ()) for kind in
                     ('thing', 'stuff'))
    if classes != things + stuff:
        raise UserError(
            f'metainfo.classes ({some(classes)}) should be metainfo.thing_classes ({some(things)}) '
            f'and then metainfo.stuff_classes ({some(stuff)})')
    wrong = [category['name'] for category in categories if category['name'] in classes
             and bool(category['isthing']) != (category['name'] in things)]
    if wrong:
        raise UserError(f'the annotation file {dataset.ann_file} and metainfo.thing_classes do not '
                        f'agree which categories are things: {some(wrong)}')


def check_segmentation(dataset):
    image_folder = dataset.data_prefix.get('img_path') or ''
    label_folder = folders(dataset).get('seg_map_path')
    if dataset.ann_file and os.path.isfile(dataset.ann_file):
        stems = [line.strip() for line in Path(dataset.ann_file).read_text().splitlines()]
        check_all_there(image_folder, [stem + dataset.img_suffix for stem in stems],
                        f'images listed in {dataset.ann_file}')
    else:
        stems = stems_in(image_folder, dataset.img_suffix)
        if not stems:
            raise UserError(f'the folder {image_folder} holds no *{dataset.img_suffix} images')
        if label_folder:
            check_all_there(image_folder, [stem + dataset.img_suffix for stem in
                                           stems_in(label_folder, dataset.seg_map_suffix)],
                            f'images that have a label map in {label_folder}')
    if label_folder:
        check_all_there(label_folder, [stem + dataset.seg_map_suffix for stem in stems],
                        f'label maps of the images in {image_folder}')


def stems_in(folder, suffix):
    return sorted(os.path.relpath(os.path.join(parent, name), folder)[:-len(suffix)]
                  for parent, _, names in os.walk(folder) for name in names
                  if name.endswith(suffix))


def check_all_there(folder, names, what):
    """Compare names, relative to folder, with one listing a folder: 118k files take a second."""
    @functools.cache
    def listing(subfolder):
        path = os.path.join(folder, subfolder)
        return set(os.listdir(path)) if os.path.isdir(path) else set()

    missing = [name for name in names
               if os.path.basename(name) not in listing(os.path.dirname(name))]
    if missing:
        raise UserError(f'{len(missing)} of {len(names)} {what} are not in {folder}: '
                        f'{some(missing)}')


def check_heads(model, dataset, where):
    """Every head predicts as many classes (of things, of stuff) as the data set has."""
    meta = dataset.metainfo
    for name, kinds, number in head_classes(model):
        found = {kind: meta[kind] for kind in kinds if meta.get(kind)}
        if found and number not in map(len, found.values()):
            kind, classes = next(iter(found.items()))
            raise UserError(
                f'{name} is {number}, but {where} has {len(classes)} {kind.replace("_", " ")} '
                f'({some(classes)}); set the one or metainfo.{kind} of the other')


# What a head calls the number of its classes, and what they are in a data set's metainfo.
# (A box head beside a semantic one predicts things alone.)
HEAD_CLASSES = dict(
    num_classes=('classes', 'thing_classes'),
    num_things_classes=('thing_classes', ),
    num_stuff_classes=('stuff_classes', ))


OTHER_CLASSES = 'rpn_head', 'semantic_head'  # heads that do not count the data set's


def head_classes(node, name='model'):
    """(name, keys of metainfo, number) of all heads below, but for those of other classes."""
    for key, value in node.items():
        if not key.endswith('head') or key in OTHER_CLASSES:
            continue
        for index, head in enumerate(value if isinstance(value, (list, tuple)) else [value]):
            if not isinstance(head, dict):
                continue
            path = f'{name}.{key}' + (f'.{index}' if isinstance(value, (list, tuple)) else '')
            for number, kinds in HEAD_CLASSES.items():
                if number in head:
                    yield f'{path}.{number}', kinds, head[number]
            yield from head_classes(head, path)


def some(names, most=5):
    """The first few names, for a message."""
    return ', '.join(map(str, names[:most])) + (', …' if len(names) > most else '')
