"""The predictions that ``tools/test.py --out`` wrote: read safely, scored in detail."""
import contextlib
import copy
import io
import json
import os
import pickle
import re
import tempfile
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from mmengine.registry import DATASETS, METRICS, init_default_scope

from backbones.claims import Claims, check_packed, check_values, encoded

from ..data.parts import leaves, metrics_of
from ..errors import UserError
from ..progress import Progress

SHOWN = 0.3  # boxes of a lower score are neither drawn nor counted in an image's F1


# -- reading -----------------------------------------------------------------------------------

# All that a file of plain values and tensors names. torch's own function would unpickle anything.
SAFE = {
    ('collections', 'OrderedDict'): OrderedDict,
    ('_codecs', 'encode'): encoded,
    ('torch._utils', '_rebuild_tensor_v2'): torch._utils._rebuild_tensor_v2,
    ('torch.storage', '_load_from_bytes'): lambda content: storage_of(content),
}


def storage_of(content: bytes):
    """A tensor's numbers, which torch writes as a file of its own."""
    check_packed(io.BytesIO(content), len(content))
    return torch.load(io.BytesIO(content), map_location='cpu', weights_only=True)


class SafeUnpickler(pickle.Unpickler):
    """Builds plain values and tensors and refuses every other name."""

    def find_class(self, module, name):
        if (module, name) not in SAFE:
            raise pickle.UnpicklingError(f'GLOBAL {module}.{name}')
        return SAFE[module, name]


def load_predictions(path) -> list[dict]:
    """Read the file, one dict an image, without running what it may hold.

    Raises:
        UserError: it is not such a file.
    """
    try:
        with open(path, 'rb') as file:
            predictions = SafeUnpickler(file).load()
            check_values(predictions, os.fstat(file.fileno()).st_size)
        assert predictions and isinstance(predictions, list)
        assert all(isinstance(prediction['img_path'], str) and prediction['img_path']
                   for prediction in predictions)
    except Claims as error:
        raise UserError(f'{path} {error}') from None
    except Exception as error:  # damaged bytes make the reader stumble in any way
        unsafe = re.search(r'GLOBAL (\S+)', str(error))
        raise UserError(f'{path} does not hold predictions as tools/test.py --out writes them'
                        + (f': it names {unsafe[1]}, and reading that would run code from the file'
                           if unsafe else '')) from None
    return predictions


def build_dataset(cfg):
    """The test data set of a config, whose items are images and ground truth at original size."""
    init_default_scope(cfg.get('default_scope') or 'mmengine')
    dataset = copy.deepcopy(cfg.test_dataloader.dataset)
    for leaf in leaves(dataset):
        leaf.pipeline = [step for step in leaf.pipeline
                         if re.search(r'(^|\.)(Load|Pack)', step.type)]
        leaf.pipeline[-1].meta_keys = ('img_path', 'ori_shape')
    with quiet():
        return DATASETS.build(dataset)


@contextlib.contextmanager
def quiet():
    """pycocotools prints what it does."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield


# -- scoring -----------------------------------------------------------------------------------

@dataclass
class Scores:
    """What predictions are worth, all in percent.

    Attributes:
        overall: the scores of the whole data set, the main one first.
        classes: {class: {column: score}}; NaN where the class does not occur.
        images: (score, a few words about it) of each image, in the predictions' order.
        rule: what an image's score is.
        precision: detection: {'box' or 'mask': (10 IoU from 0.50 to 0.95, 101 recalls, classes)}.
        confusion: segmentation: (classes, classes) pixels, of row's class predicted as column's.
    """
    overall: dict[str, float]
    classes: dict[str, dict[str, float]]
    images: list[tuple[float, str]]
    rule: str
    precision: dict[str, np.ndarray] = field(default_factory=dict)
    confusion: np.ndarray | None = None


def score(cfg, dataset, predictions: list[dict], source) -> Scores | None:
    """Score predictions with the data set and the annotations of the config's test_evaluator.

    Args:
        dataset: from :func:`build_dataset`.
        source: what to call the predictions.

    Returns:
        None where the evaluator is none of COCO's boxes and masks, mIoU and PQ.

    Raises:
        UserError: the predictions are of another data set or task.
    """
    names = [Path(dataset.get_data_info(i)['img_path']).name for i in range(len(dataset))]
    predicted = [Path(prediction['img_path']).name for prediction in predictions]
    if names != predicted:
        raise UserError(
            f'{source} holds predictions of another data set: of {len(predicted)} images from '
            f'{predicted[0]} to {predicted[-1]}; the test_dataloader has {len(names)}, from '
            f'{names[0]} to {names[-1]}')
    for evaluator in metrics_of(cfg, 'test'):
        key, scorer = SCORERS.get(evaluator.type.rpartition('.')[2], (None, None))
        if scorer is None:
            continue
        if key not in predictions[0]:
            raise UserError(f'{source} holds no {key}, which {evaluator.type} scores: the '
                            'predictions are of another kind of model')
        with quiet():
            metric = METRICS.build(evaluator)
        metric.dataset_meta = dataset.metainfo
        return scorer(metric, predictions, dataset)


def score_detection(metric, predictions, dataset) -> Scores:
    """COCO's AP of boxes and masks; an image's score is its F1."""
    from mmdet.datasets.api_wrappers import COCO, COCOeval
    # COCO's boxes and masks are of things, where a model finds stuff too.
    names = dataset.metainfo.get('thing_classes') or dataset.metainfo['classes']
    truth, rows = rows_of_coco(metric, predictions, names)

    overall, precision, columns = {}, {}, {name: {} for name in names}
    counts = {p['img_id']: np.zeros(3, int) for p in predictions}
    for kind, word in ('bbox', 'box'), ('segm', 'mask'):
        if kind not in metric.metrics or kind not in rows:  # --tta: boxes only
            continue
        found = COCO()
        with quiet():
            if rows[kind]:
                found = truth.loadRes(rows[kind])
            else:
                found.dataset = {**truth.dataset, 'annotations': []}
                found.createIndex()
        for count in counts.values():
            count[:] = 0
        parts = []
        for category in Progress(metric.cat_ids, f'scoring: {word} AP of each class'):
            with quiet():
                evaluation = COCOeval(truth, found, kind)
                evaluation.params.catIds = [category]
                evaluation.params.imgIds = list(counts)
                evaluation.evaluate()
                evaluation.accumulate()
            # IoU x recall x class x area x number of boxes: all areas, the 100 best boxes
            parts.append(evaluation.eval['precision'][:, :, 0, 0, -1])
            count_right(evaluation, counts)
        curves = np.stack(parts, -1)
        precision[word] = np.where(curves < 0, np.nan, curves)  # (10, 101, classes)
        each = {'AP': slice(None), 'AP50': slice(0, 1), 'AP75': slice(5, 6)}
        for column, ious in each.items():
            values = 100 * precision[word][ious].mean((0, 1))
            overall[f'{word} {column}'] = nanmean(values)
            for name, value in zip(names, values, strict=True):
                columns[name][f'{word} {column}'] = value
    images = []
    for right, spurious, missed in counts.values():
        f1 = 100 * ratio(2 * right, 2 * right + spurious + missed, empty=1)
        images.append((f1, f'F1 {f1:.0f} %: {right} right, {spurious} spurious, {missed} missed'))
    return Scores(overall, columns, images, (
        f'F1 at IoU 0.5 of the {"masks" if "mask" in precision else "boxes"} with a score of '
        f'{SHOWN} or more, which are the ones drawn: 2 right / (2 right + spurious + missed). '
        'An image without objects and without predictions has 100 %'), precision=precision)


def rows_of_coco(metric, predictions: list[dict], names):
    """(the ground truth, {'bbox' or 'segm': predictions in COCO's format}); sets metric.cat_ids."""
    truth = metric._coco_api
    metric.cat_ids = truth.get_cat_ids(cat_names=names)
    metric.process({}, predictions)
    with tempfile.TemporaryDirectory() as folder:
        try:
            files = metric.results2json([result for _, result in metric.results], f'{folder}/all')
        except IndexError:
            raise UserError(f'the predictions are of more than the {len(names)} classes of the '
                            'test_dataloader') from None
        rows = {kind: json.loads(Path(file).read_text()) for kind, file in files.items()}
    for row in rows.get('segm', ()):  # with boxes, areas would be theirs
        row.pop('bbox')
    return truth, rows


def count_right(evaluation, counts: dict):
    """Add to {image id: [right, spurious, missed]} what one class has at IoU 0.5.

    COCO matches from the highest score down, so lower ones change no match: leaving those out
    afterwards is as if they had not been predicted.
    """
    for image in evaluation.evalImgs:
        if image is None or image['aRng'] != evaluation.params.areaRng[0]:
            continue
        counted = (np.array(image['dtScores']) >= SHOWN) & ~image['dtIgnore'][0].astype(bool)
        matched = image['dtMatches'][0] > 0
        right = int((counted & matched).sum())
        true = int((np.array(image['gtIgnore']) == 0).sum())
        counts[image['image_id']] += right, int((counted & ~matched).sum()), true - right


def score_segmentation(metric, predictions, dataset) -> Scores:
    """IoU and accuracy; an image's score is its own mIoU."""
    names = dataset.metainfo['classes']
    total, images = np.zeros((len(names), len(names)), int), []
    for i, prediction in enumerate(Progress(predictions, 'scoring: mIoU of each image')):
        true = dataset[i]['data_samples'].gt_sem_seg.data.squeeze(0).numpy()
        found = prediction['pred_sem_seg']['data'].squeeze(0).numpy()
        if found.shape != true.shape or found.max() >= len(names):
            raise UserError(f'the prediction for {prediction["img_path"]} has the shape '
                            f'{found.shape} and class numbers up to {found.max()}; its label map '
                            f'has {true.shape}, the test_dataloader {len(names)} classes')
        valid = true != metric.ignore_index
        confusion = np.bincount(true[valid] * len(names) + found[valid],
                                minlength=total.size).reshape(total.shape)
        total += confusion
        image_iou = nanmean(overlap(confusion))
        images.append((image_iou, f'mIoU {image_iou:.1f} %'))
    iou = overlap(total)
    accuracy = 100 * ratio(total.diagonal(), total.sum(1))
    return Scores(
        {'mIoU': nanmean(iou), 'mAcc': nanmean(accuracy),
         'aAcc': 100 * total.trace() / total.sum()},
        {name: {'IoU': i, 'accuracy': a} for name, i, a in zip(names, iou, accuracy, strict=True)},
        images, 'the mean IoU of the classes that occur in the image, in truth or predicted',
        confusion=total)


def overlap(confusion):
    """The IoU of each class in percent; NaN where it occurs neither in truth nor predicted."""
    right = confusion.diagonal()
    return 100 * ratio(right, confusion.sum(0) + confusion.sum(1) - right)


def score_panoptic(metric, predictions, dataset) -> Scores:
    """PQ, by hotcoco, an image at a time; the sums over all images give the data set's."""
    from hotcoco.panoptic import PanopticEval
    truth = json.loads(Path(metric.ann_file).read_text())
    annotations = {annotation['image_id']: annotation for annotation in truth['annotations']}
    sizes = {image['id']: image for image in truth['images']}
    sums = {name: np.zeros(4) for name in metric.ids}  # overlap, right, spurious, missed
    images = []
    with tempfile.TemporaryDirectory() as folder:
        for prediction in Progress(predictions, 'scoring: PQ of each image'):
            metric.process({}, [prediction])
            result = metric.results.pop()
            Path(folder, result['file_name']).write_bytes(result.pop('png'))
            number = result['image_id']
            evaluation = PanopticEval(
                dict(images=[sizes[number]], annotations=[annotations[number]],
                     categories=truth['categories']),
                dict(annotations=[result]), gt_folder=metric.seg_prefix, pred_folder=folder)
            evaluation.evaluate()
            Path(folder, result['file_name']).unlink()
            each = {metric.names[int(number)]: np.array([s['iou'], s['tp'], s['fp'], s['fn']])
                    for number, s in evaluation.results()['per_class'].items()}
            for name, values in each.items():
                sums[name] += values
            pq = nanmean([quality(values)['PQ'] for values in each.values()])
            _, right, spurious, missed = sum(each.values()).astype(int)
            images.append((pq, f'PQ {pq:.1f} %: {right} right, {spurious} spurious, '
                               f'{missed} missed'))
    classes = {name: quality(values) for name, values in sums.items()}
    things = {category['name'] for category in truth['categories'] if category['isthing']}
    groups = {'': set(classes), ' things': things, ' stuff': set(classes) - things}
    return Scores(
        {f'{key}{group}': nanmean([classes[name][key] for name in members])
         for group, members in groups.items() for key in ('PQ', 'SQ', 'RQ')},
        classes, images, 'its own PQ, the mean over the classes that occur in it, in truth or '
                         'predicted')


def quality(sums) -> dict[str, float]:
    """PQ, SQ and RQ from a class's summed overlap and its segments right, spurious and missed."""
    overlaps, right, spurious, missed = sums
    weight = right + (spurious + missed) / 2
    return {'PQ': 100 * ratio(overlaps, weight),
            'SQ': 100 * ratio(overlaps, right, empty=0 if weight else np.nan),
            'RQ': 100 * ratio(right, weight)}


def ratio(part, whole, empty=np.nan):
    """part / whole, and ``empty`` where the whole is 0."""
    part, whole = np.asarray(part, float), np.asarray(whole, float)
    return np.divide(part, whole, out=np.full(whole.shape, float(empty)), where=whole > 0)[()]


def nanmean(values) -> float:
    """The mean of what is not NaN; NaN where all is."""
    values = np.asarray(values)
    return float(values[~np.isnan(values)].mean()) if (~np.isnan(values)).any() else float('nan')


# The evaluator: what it scores of a prediction, and who does it here.
SCORERS = {
    'CocoMetric': ('pred_instances', score_detection),
    'IoUMetric': ('pred_sem_seg', score_segmentation),
    'PanopticQuality': ('pred_panoptic_seg', score_panoptic),
}
