"""Results as people submit and exchange them: written without ground truth, read to be scored.

A folder of results has, by the kind of model::

    predictions.json   boxes, and masks if any: a list in COCO's results format
    masks.json         the masks alone (from tools/test.py), as COCO's server takes them: with boxes
                       it would count objects as small or large by their boxes
    images.json        the images and categories that the numbers in both stand for
    labels/NAME.png    label maps, with the values of the data set's own (ADE20K: 1 to 150)
    panoptic.json      COCO's panoptic format, with images and categories
    panoptic/NAME.png  its maps
"""
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from mmdet.evaluation.functional import INSTANCE_OFFSET
from mmengine.evaluator import BaseMetric
from mmengine.logging import print_log
from mmengine.registry import METRICS, DefaultScope
from PIL import Image
from prettytable import PrettyTable
from pycocotools import mask as rle

from ..data.checks import check_data, leaf_datasets, some
from ..data.files import write_json
from ..data.layouts import DETECTION, PANOPTIC, SEGMENTATION
from ..data.loading import type_name, without_truth, words_of
from ..data.own import kind_of_experiment
from ..data.panoptic import encode_segments, read_ids
from ..data.parts import leaves, metrics_of, steps_of
from ..errors import UserError
from ..heads.dino import COCO_IDS
from .predictions import SCORERS, Scores, load_predictions

PREDICTIONS, MASKS, IMAGES = 'predictions.json', 'masks.json', 'images.json'
LABELS, SEGMENTS = 'labels', 'panoptic'


# -- numbers of classes ------------------------------------------------------------------------

def numbers(text: str) -> list[int]:
    """'1-3 7' to [1, 2, 3, 7]."""
    pairs = [part.split('-') for part in text.split()]
    return [number for pair in pairs for number in range(int(pair[0]), int(pair[-1]) + 1)]


# The ids of COCO's stuff in its annotation files, in the order of mmdet's classes.
COCO_STUFF = numbers('92-93 95 100 107 109 112 118-119 122 125 128 130 133 138 141 144-145 147-149 '
                     '151 154-156 159 161 166 168 171 175-178 180-181 184-200')


def category_ids(classes: Sequence[str]) -> list[int]:
    """COCO's ids for COCO's classes; from 1 in their order for all others."""
    from mmdet.datasets import CocoDataset, CocoPanopticDataset
    known = {CocoDataset.METAINFO['classes']: COCO_IDS,
             CocoPanopticDataset.METAINFO['classes']: COCO_IDS + COCO_STUFF}
    return known.get(tuple(classes), list(range(1, len(classes) + 1)))


def categories(meta: dict, ids: Sequence[int]) -> list[dict]:
    """COCO's categories of a data set's meta, with 'isthing' where it tells things from stuff."""
    things = meta.get('thing_classes')
    return [dict(id=number, name=name, **({} if things is None else
                                          dict(isthing=int(name in things))))
            for number, name in zip(ids, meta['classes'], strict=True)]


def label_values(cfg) -> np.ndarray:
    """(classes,) the values that stand for the classes in the label maps of a config's test set.

    The inverse of what loading does: ADE20K's are 1 to 150 (0 is "other"), a data set of one's own
    has those that its description says.
    """
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
        dataset = leaf_datasets(cfg.test_dataloader.dataset)[0]
    values = np.arange(len(dataset.metainfo['classes']))
    if getattr(dataset, 'reduce_zero_label', False):
        values += 1
    for step in steps_of(cfg, 'LoadLabels'):
        if step.get('values'):  # several values may stand for a class: the first serves
            for value, number in reversed(step['values'].items()):
                if number < len(values):
                    values[number] = value
            break
    return values


# -- writing -----------------------------------------------------------------------------------

def rows_of(boxes: np.ndarray, scores: np.ndarray, labels: np.ndarray, masks, ids) -> list[dict]:
    """An image's detections in COCO's results format, without the image's id.

    Args:
        boxes: (N, 4) x1, y1, x2, y2 in pixels.
        scores, labels: (N, ).
        masks: (N, H, W) bool, or None.
        ids: category id of each label.
    """
    rows = [dict(category_id=ids[label], bbox=[round(float(v), 3) for v in
                                               (x1, y1, x2 - x1, y2 - y1)],
                 score=round(float(score), 6))
            for (x1, y1, x2, y2), score, label in zip(boxes, scores, labels, strict=True)]
    if masks is not None:
        for row, mask in zip(rows, masks, strict=True):
            code = rle.encode(np.asfortranarray(mask, np.uint8))
            row['segmentation'] = dict(size=code['size'], counts=code['counts'].decode())
    return rows


def save_labels(path: Path, labels: np.ndarray, values: np.ndarray):
    """(H, W) class numbers as a grey PNG; 16 bits where the values need them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    dtype = np.uint8 if values.max() < 256 else np.uint16
    Image.fromarray(values[labels].astype(dtype)).save(path)


@METRICS.register_module()
class WriteResults(BaseMetric):
    """In place of a config's evaluators: writes the predictions, and needs no ground truth.

    Args:
        folder: for the results (see this module).
        kind: 'detection', 'segmentation' or 'panoptic'.
        ids: detection, panoptic: category id of each class.
        values: segmentation: label value of each class.
    """

    def __init__(self, folder: str, kind: str, ids: list[int] | None = None, values=None, **kwargs):
        super().__init__(**kwargs)
        self.folder, self.kind, self.ids = Path(folder), kind, ids
        self.values = None if values is None else np.array(values)

    def process(self, data_batch, data_samples):
        for sample in data_samples:
            height, width = map(int, sample['ori_shape'])
            name = Path(sample['img_path'])
            image = dict(id=sample.get('img_id'), file_name=name.name, width=width, height=height)
            self.results.append((image, self.encode(sample, name)))

    def encode(self, sample: dict, name: Path):
        """What is written of an image: its rows, or a PNG and what it holds; label maps at once."""
        if self.kind == SEGMENTATION:
            save_labels(self.folder / LABELS / f'{name.stem}.png',
                        sample['pred_sem_seg']['data'].cpu().numpy().squeeze(), self.values)
            return None
        if self.kind == PANOPTIC:
            seg = sample['pred_panoptic_seg']['sem_seg'][0]
            return encode_segments(seg.cpu().numpy(), self.ids)
        found = sample['pred_instances']
        masks = found.get('masks')
        return rows_of(*(found[key].cpu().numpy() for key in ('bboxes', 'scores', 'labels')),
                       None if masks is None else masks.cpu().numpy(), self.ids)

    def compute_metrics(self, results: list) -> dict:
        images = [image for image, _ in results]
        if self.kind == DETECTION:
            write_detections(self.folder, [dict(image_id=image['id'], **row)
                                           for image, rows in results for row in rows],
                             images, categories(self.dataset_meta, self.ids), masks_apart=True)
        elif self.kind == PANOPTIC:
            for image, (png, _) in results:
                path = self.folder / SEGMENTS / Path(image['file_name']).with_suffix('.png')
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(png)
            write_panoptic(self.folder, images, [segments for _, (_, segments) in results],
                           categories(self.dataset_meta, self.ids))
        print_log(f'The predictions of {len(results)} images are in {self.folder}', 'current')
        return {}


def write_detections(folder: Path, rows: list[dict], images: list[dict], kinds: list[dict],
                     masks_apart: bool = False):
    write_json(folder / PREDICTIONS, rows)
    write_json(folder / IMAGES, dict(images=images, categories=kinds))
    if masks_apart and any('segmentation' in row for row in rows):
        write_json(folder / MASKS, [{key: value for key, value in row.items() if key != 'bbox'}
                                    for row in rows])


def write_panoptic(folder: Path, images: list[dict], segments: list[list], kinds: list[dict]):
    write_json(folder / f'{SEGMENTS}.json', dict(
        images=images, categories=kinds, annotations=[
            dict(image_id=image['id'], segments_info=found,
                 file_name=Path(image['file_name']).with_suffix('.png').as_posix())
            for image, found in zip(images, segments, strict=True)]))


def without_ground_truth(cfg, folder: str):
    """Let a config's test write its predictions into a folder; its images need no annotations.

    Its label folders are forgotten and its annotation file is a list of images: COCO's of the test
    images serves.

    Raises:
        UserError: the images are not there, or their list does not say which category a class is.
    """
    kind = kind_of_experiment(cfg)
    values = label_values(cfg).tolist() if kind == SEGMENTATION else None
    for leaf in leaves(cfg.test_dataloader.dataset):
        leaf.pipeline = without_truth(leaf.pipeline)
        for key in ('seg_map_path', 'seg'):
            (leaf.get('data_prefix') or {}).pop(key, None)
    cfg.test_evaluator = dict(type='WriteResults', folder=str(folder), kind=kind)
    check_data(cfg, 'test', truth=False)
    if kind == SEGMENTATION:
        cfg.test_evaluator.update(values=values)
        return
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
        dataset = leaf_datasets(cfg.test_dataloader.dataset)[0]
    classes = dataset.metainfo['classes']
    known = {category['name']: category['id'] for category in
             json.loads(Path(dataset.ann_file).read_text()).get('categories', [])}
    ids = category_ids(classes)
    if set(classes) <= known.keys():
        ids = [known[name] for name in classes]
    elif ids[-1] == len(ids):  # not COCO's
        raise UserError(f'{dataset.ann_file} has no category '
                        f'{some([name for name in classes if name not in known])}: which numbers '
                        'the results should have for the classes, it does not say')
    cfg.test_evaluator.update(ids=ids)


# -- reading -----------------------------------------------------------------------------------

class OnDemand(dict):
    """An entry that is made when it is asked for, and not kept: all maps would fill the memory."""

    def __init__(self, key: str, make: Callable):
        self.key, self.make = key, make

    def __missing__(self, key):
        if key != self.key:
            raise KeyError(key)
        return self.make()


def read_results(path: Path, cfg, dataset) -> list[dict]:
    """Results as :func:`downstream.scoring.predictions.score` takes them, of any of the formats.

    Keeps of the config's evaluators those that score them.

    Args:
        path: a folder of results, a JSON file in it, a folder of PNG label maps, or the pickle that
            ``tools/test.py --out`` wrote.
        dataset: from ``build_dataset``.

    Raises:
        UserError: nothing of the kind is there, it is of another kind than the config scores, or of
            images or classes that the data set does not have.
    """
    if not path.exists():
        raise UserError(f'there are no results {path}')
    if path.suffix in ('.pkl', '.pickle'):
        return load_predictions(path)
    if path.is_dir():
        inside = [path / PREDICTIONS, path / f'{SEGMENTS}.json', path / LABELS]
        chosen = next((part for part in inside if part.exists()), path)
        if chosen == path and not any(path.rglob('*.png')):
            raise UserError(f'{path} holds no results: no {PREDICTIONS}, {SEGMENTS}.json, {LABELS}/'
                            ' or PNG label maps')
        path = chosen
    content = None if path.is_dir() else read_json(path)
    key, reader = (('pred_sem_seg', read_labels) if path.is_dir() else
                   ('pred_instances', read_detections) if isinstance(content, list) else
                   ('pred_panoptic_seg', read_panoptic))
    cfg.test_evaluator = [metric for metric in metrics_of(cfg, 'test')
                          if SCORERS.get(type_name(metric), [''])[0] == key]
    if not cfg.test_evaluator:
        raise UserError(f'{path} holds {NAMES[key]}, and the config scores none: is this the '
                        'config that they are of?')
    return reader(path, content, cfg, dataset)


NAMES = dict(pred_instances='boxes or masks', pred_sem_seg='label maps',
             pred_panoptic_seg='panoptic segments')


def read_json(path: Path):
    try:
        content = json.loads(path.read_text(encoding='utf-8'))
    except (OSError, ValueError) as error:
        raise UserError(f'{path} cannot be read as JSON: {error}') from None
    needed = (('image_id', 'category_id', 'score') if isinstance(content, list) else
              ('image_id', 'file_name', 'segments_info'))
    entries = content if isinstance(content, list) else (
        content.get('annotations') if isinstance(content, dict) else None)
    if not isinstance(entries, list) or any(
            not isinstance(entry, dict) or any(key not in entry for key in needed)
            for entry in entries):
        raise UserError(f"{path} is neither a list in COCO's results format (entries with image_id,"
                        ' category_id, score, and bbox or segmentation) nor panoptic results '
                        '(annotations with image_id, file_name and segments_info)')
    return content


class Places:
    """Which of a data set's images and classes the numbers in results stand for.

    Args:
        said: what the results say of their images and categories; without that, their numbers are
            the annotations' own.
    """

    def __init__(self, path: Path, said: dict, dataset):
        self.path, self.dataset = path, dataset
        self.infos = [dataset.get_data_info(i) for i in range(len(dataset))]
        classes = list(dataset.metainfo['classes'])
        self.labels = dict(dataset.cat2label)
        if 'categories' in said:
            self.labels = {category['id']: classes.index(category['name'])
                           for category in said['categories'] if category['name'] in classes}
        self.images = {info['img_id']: i for i, info in enumerate(self.infos)}
        if 'images' in said:
            self.images = self.by_name(said['images'])

    def by_name(self, images: list[dict]) -> dict:
        known = {}
        for i, info in enumerate(self.infos):
            known.setdefault(Path(info['img_path']).name, []).append(i)
        found, strange = {}, []
        for image in images:
            name = image['file_name']
            fits = known.get(Path(name).name, [])
            if len(fits) > 1:
                fits = [i for i in fits if self.infos[i]['img_path'].endswith(f'/{name}')]
            if len(fits) == 1:
                found[image['id']] = fits[0]
            else:
                strange.append(name)
        self.refuse(strange, len(images), 'images')
        return found

    def refuse(self, strange: list, total: int, what: str):
        if strange:
            raise UserError(f'{self.path} has results of other {what}: {len(strange)} of {total} '
                            f'are not in the annotations of the test_dataloader: {some(strange)}')

    def all_there(self, found, what: str):
        missing = [Path(info['img_path']).name for i, info in enumerate(self.infos)
                   if i not in found]
        if missing:
            raise UserError(f'{self.path} has no {what} of {len(missing)} of the {len(self.infos)} '
                            f'images of the test_dataloader: {some(missing)}')

    def check(self, image_ids, found_categories):
        for found, known, what in ((set(image_ids), self.images, 'images'),
                                   (set(found_categories), self.labels, 'categories')):
            self.refuse(sorted(found - known.keys(), key=str), len(found), what)


def read_detections(path: Path, rows: list[dict], cfg, dataset) -> list[dict]:
    """Images without a row count as images in which nothing was found."""
    beside = path.with_name(IMAGES)
    places = Places(path, json.loads(beside.read_text()) if beside.is_file() else {}, dataset)
    places.all_there(set(places.images.values()), 'results')
    places.check((row['image_id'] for row in rows), (row['category_id'] for row in rows))
    has = {key: sum(key in row for row in rows) for key in ('bbox', 'segmentation')}
    if rows and len(rows) not in has.values() or 0 < has['segmentation'] < len(rows):
        raise UserError(f'{path}: of {len(rows)} entries {has["bbox"]} have a bbox, '
                        f'{has["segmentation"]} a segmentation; all should have the same')
    if rows and not has['bbox']:
        only_masks(path, cfg)
    found = [[] for _ in places.infos]
    for row in rows:
        found[places.images[row['image_id']]].append(row)
    return [dict(img_id=info['img_id'], img_path=info['img_path'],
                 ori_shape=(info['height'], info['width']),
                 pred_instances=instances(own, places.labels, info, bool(has['segmentation'])))
            for info, own in zip(places.infos, found, strict=True)]


def only_masks(path: Path, cfg):
    for metric in cfg.test_evaluator:
        if 'segm' not in metric.metric:
            raise UserError(f'{path} holds masks alone, and the config scores boxes')
        metric.metric = ['segm']


def instances(rows: list[dict], labels: dict, info: dict, masks: bool) -> dict:
    boxes = np.array([row.get('bbox', (0, 0, 0, 0)) for row in rows], np.float32).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    return dict(
        bboxes=torch.from_numpy(boxes),
        scores=torch.tensor([row['score'] for row in rows], dtype=torch.float64),
        labels=torch.tensor([labels[row['category_id']] for row in rows], dtype=torch.long),
        **(dict(masks=[as_rle(row['segmentation'], info) for row in rows]) if masks else {}))


def as_rle(mask, info: dict) -> dict:
    """COCO's masks may be polygons or uncompressed run lengths too."""
    size = info['height'], info['width']
    if isinstance(mask, list):
        return rle.merge(rle.frPyObjects(mask, *size))
    if isinstance(mask['counts'], list):
        return rle.frPyObjects(mask, *size)
    return mask


def read_labels(path: Path, _, cfg, dataset) -> list[dict]:
    infos = [dataset.get_data_info(i) for i in range(len(dataset))]
    files = {file.relative_to(path).with_suffix('').as_posix(): file
             for file in path.rglob('*.png')}
    stems = {name.rpartition('/')[2]: file for name, file in files.items()}
    chosen, missing = [], []
    for info in infos:
        image = Path(info['img_path']).with_suffix('').as_posix()
        tails = [name for name in files if image.endswith(f'/{name}')] or [Path(image).name]
        file = files.get(max(tails, key=len)) or stems.get(Path(image).name)
        chosen.append(file)
        if file is None:
            missing.append(Path(info['img_path']).name)
    if missing:
        raise UserError(f'{path} has no label map of {len(missing)} of the {len(infos)} images of '
                        f'the test_dataloader: {some(missing)}')
    values = label_values(cfg)
    table = np.full(65536, -1)
    table[values] = np.arange(len(values))

    def read(file):
        try:
            with Image.open(file) as image:
                found = np.asarray(image)
        except Exception as error:  # what damaged bytes make Pillow do is anybody's guess
            raise UserError(f'label map {file} cannot be read: {words_of(error)}') from None
        if found.ndim != 2 or found.dtype.kind not in 'biu' or not (
                0 <= found.min() <= found.max() < len(table)):
            raise UserError(f'label map {file} is a {image.mode} image, not one of numbers')
        labels = table[found.astype(int)]
        if (labels < 0).any():
            raise UserError(f'label map {file} has the values {some(np.unique(found[labels < 0]))},'
                            f' which are no classes; the data set has {values.min()} to '
                            f'{values.max()}')
        return torch.from_numpy(labels)[None]

    return [dict(img_path=info['img_path'],
                 pred_sem_seg=OnDemand('data', lambda file=file: read(file)))
            for info, file in zip(infos, chosen, strict=True)]


def read_panoptic(path: Path, content: dict, cfg, dataset) -> list[dict]:
    places = Places(path, content, dataset)
    entries = content['annotations']
    places.check((entry['image_id'] for entry in entries),
                 (s['category_id'] for entry in entries for s in entry['segments_info']))
    found = {places.images[entry['image_id']]: entry for entry in entries}
    places.all_there(found.keys(), 'segments')
    nothing = len(dataset.metainfo['classes'])

    def read(entry, info):
        file = path.with_suffix('') / entry['file_name']
        try:
            ids = read_ids(file.read_bytes())
        except OSError as error:
            raise UserError(f'panoptic map {file} is missing, truncated or not an image: '
                            f'{error}') from None
        if ids.shape != (info['height'], info['width']):
            raise UserError(f'panoptic map {file} has the shape {ids.shape}, its image '
                            f'{(info["height"], info["width"])}')
        seg = np.full(ids.shape, nothing, np.int64)
        for number, segment in enumerate(entry['segments_info']):
            seg[ids == segment['id']] = (places.labels[segment['category_id']]
                                         + number * INSTANCE_OFFSET)
        return torch.from_numpy(seg)[None]

    return [dict(img_id=info['img_id'], img_path=info['img_path'],
                 ori_shape=(info['height'], info['width']),
                 pred_panoptic_seg=OnDemand('sem_seg', lambda entry=found[i], info=info:
                                            read(entry, info)))
            for i, info in enumerate(places.infos)]


# -- showing -----------------------------------------------------------------------------------

def as_table(scores: Scores) -> str:
    """All scores of the data set, in percent, and of each class; blank where it does not occur."""
    columns = list(dict.fromkeys(column for values in scores.classes.values() for column in values))
    table = PrettyTable(['class', *columns], align='r')
    table.align['class'] = 'l'
    for name, values in scores.classes.items():
        table.add_row([name, *('' if np.isnan(values.get(column, np.nan)) else
                               f'{values[column]:.1f}' for column in columns)])
    overall = [f'{name:12} {value:6.2f}' for name, value in scores.overall.items()]
    return '\n'.join([str(table), *overall])
