"""A released detector or segmentor, scored here: is the published number met?"""
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
from mmengine.registry import METRICS

from backbones.weights import fetch_named, released_for

from ..data.checks import check_data, some
from ..data.files import write_json
from ..data.parts import metrics_of
from ..errors import UserError, user_message
from ..experiments import CONFIGS
from ..saving import write_whole
from ..training.launching import make_writable, read_config
from . import ledger as book
from .predictions import build_dataset, load_predictions, overlap, quiet, rows_of_coco
from .records import mark_released

CLOSE = 0.1  # points: how far a score may be from the published one
RESAMPLES = 400  # of a quick look's images
PACKAGES = {'mmdet': ('mmdet', 'onedl-mmdetection'), 'mmseg': ('mmsegmentation',
                                                              'onedl-mmsegmentation'),
            'mmcv': ('mmcv', 'onedl-mmcv'), 'torch': ('torch', )}


@dataclass
class Verdict:
    """How a score compares. ``line`` says it; ``met`` whether the published number is met."""
    line: str
    met: bool


def experiments(ledger: dict) -> list[str]:
    """Those with a published number and a released file of the model that has it."""
    return [entry['Name'] for entry in ledger['Models']
            if book.published(entry) and released_for(entry['Name'])]


def reproduce(name: str, work_dir: Path, run_test: Callable, images: int | None = None,
              tta: bool = False) -> Verdict:
    """Fetch a released model, score it on the whole validation set, and enter it in the ledger.

    Args:
        name: an experiment's.
        work_dir: for the logs, records and predictions.
        run_test: ``run_test(config, checkpoint, *flags)`` runs tools/test.py; raises UserError.
        images: score so many, chosen at random but always the same, and enter nothing.
        tta: with test-time augmentation.

    Raises:
        UserError: there is no such experiment, published number or released file; or the data is
            not there.
        ValueError: the file cannot be fetched; what to do by hand is said.
    """
    entries = book.load(book.METAFILE)
    entry, weights = look_up(name, entries)
    config = CONFIGS / f'{name}.py'
    cfg = read_config(config, {}, 'model', 'test_dataloader')
    check_data(cfg, 'test')
    make_writable(work_dir, '--work-dir')
    checkpoint = fetch_named(weights)
    flags = ['--work-dir', str(work_dir), *(['--tta'] if tta else [])]
    if images:
        predictions = work_dir / 'quick_look.pkl'
        options = few_images(cfg, images, work_dir)
        run_test(config, checkpoint, *flags, '--out', str(predictions), '--cfg-options', *options)
        cfg = read_config(config, dict(option.split('=', 1) for option in options
                                       if '[' not in option), 'model', 'test_dataloader')
        if indices := [option for option in options if '[' in option]:
            cfg.test_dataloader.dataset.indices = json.loads(indices[0].split('=', 1)[1])
        return quick_verdict(name, entry, cfg, load_predictions(predictions), images, tta)
    run_test(config, checkpoint, *flags)
    path = max(work_dir.glob('*/test_record.json'), key=os.path.getmtime)
    record = json.loads(path.read_text())
    mark_released(record, weights)
    write_whole(path, json.dumps(record, indent=1) + '\n')
    result = verdict(name, entry, record)
    book.collect(entries, path.parent)
    book.save(entries, book.METAFILE)
    for page, text in book.pages(entries).items():
        write_whole(page, text)
    return result


def look_up(name: str, entries: dict) -> tuple[dict, str]:
    """An experiment's entry and the name of its released file."""
    entry, can = book.find(entries, Path(name)), experiments(entries)
    if entry is None:
        raise UserError(f'the metafile has no experiment {name}')
    if not book.published(entry):
        raise UserError(f'{name}: no number was published (docs/results.md); released and '
                        f'published were {", ".join(can)}')
    if name not in can:
        raise UserError(f'{name}: no file of the published model is known here, so its number can '
                        f'only be met by training; released were {", ".join(can)}')
    return entry, released_for(name)


def subprocess_test(tools: Path, gpus: int) -> Callable:
    """``run_test`` for ``reproduce``: a process of its own, or several with GPUs."""
    def run_test(config, checkpoint, *flags):
        start = ([sys.executable, tools / 'test.py', config, checkpoint] if gpus < 2 else
                 [tools / 'dist_test.sh', config, checkpoint, gpus])
        done = subprocess.run(list(map(str, [*start, *flags])),
                              env={**os.environ, 'PYTHON': sys.executable})
        if done.returncode:
            raise UserError(f'tools/test.py failed (status {done.returncode}); its last lines say '
                            'why')
    return run_test


# -- the whole set -----------------------------------------------------------------------------

def verdict(name: str, entry: dict, record: dict) -> Verdict:
    """Compare a record of tools/test.py with what is published."""
    measured, published = book.to_entry(record), book.published(entry)
    both = [metric for metric in measured['Metrics'] if metric in published]
    if not both:
        raise UserError(f'{name}: {", ".join(published)} is published, and '
                        f'{", ".join(measured["Metrics"])} was measured'
                        + (' (--tta)' if any('ms+flip' in metric for metric in published) else ''))
    off = {metric: round(measured['Metrics'][metric] - published[metric], 2) for metric in both}
    scores = ', '.join(f'{metric} {measured["Metrics"][metric]} (published {published[metric]})'
                       for metric in both)
    if all(abs(points) <= CLOSE + 1e-9 for points in off.values()) and not measured['Deviations']:
        return Verdict(f'{name}: reproduced: {scores}', True)
    far = ', '.join(f'{metric} by {points:+.2f}' for metric, points in off.items())
    return Verdict(f'{name}: not reproduced: {scores}: off in {far}. What may explain it: '
                   f'{"; ".join(explanations(entry, measured))}', False)


def explanations(entry: dict, measured: dict) -> list[str]:
    """What is known to be other than where the number was published; the likeliest first."""
    found = list(measured['Deviations'])
    versions = ', '.join(f'{name} {number}' for name, number in installed().items())
    found.append(f'other software (here {versions}; published with: {entry["Source"]})')
    found.append(f'the file ({measured["Checkpoint"]}): nobody states the SHA-256 that it should '
                 'have')
    if measured['Machine'].startswith('CPU'):
        found.append('a CPU rounds otherwise than a GPU, by hundredths of a point')
    return found


def installed() -> dict[str, str]:
    """The versions of what the models are made of."""
    found = {}
    for name, distributions in PACKAGES.items():
        for distribution in distributions:
            try:
                found[name] = version(distribution)
            except PackageNotFoundError:
                continue
    return found


# -- a quick look ------------------------------------------------------------------------------

def few_images(cfg, count: int, folder: Path) -> list[str]:
    """--cfg-options that let a test see so many of its images; always the same."""
    metric = metrics_of(cfg, 'test')[0]
    kind = metric.type.rpartition('.')[2]
    if kind == 'IoUMetric':
        total = len(build_dataset(cfg))
        return [f'test_dataloader.dataset.indices={sorted(chosen(range(total), count))}'.replace(
            ' ', '')]
    if kind != 'CocoMetric':
        raise UserError(f'--images: takes a part of COCO or ADE20K, not what {kind} scores')
    content = json.loads(Path(metric.ann_file).read_text(encoding='utf-8'))
    ids = set(chosen(sorted(image['id'] for image in content['images']), count))
    part = dict(content, images=[image for image in content['images'] if image['id'] in ids],
                annotations=[a for a in content['annotations'] if a['image_id'] in ids])
    file = write_json((folder / f'{count}_images.json').absolute(), part)
    return [f'test_dataloader.dataset.ann_file={file}', f'test_evaluator.ann_file={file}']


def chosen(items: Iterable, count: int) -> list:
    items = list(items)
    if not 1 < count <= len(items):
        raise UserError(f'--images {count}: there are {len(items)}, and at least 2 are needed')
    return np.random.default_rng(0).choice(items, count, replace=False).tolist()


def quick_verdict(name, entry, cfg, predictions, images, tta) -> Verdict:
    """The scores of a part of the images, with 95 % intervals from resampled images."""
    published = book.published(entry)
    parts, met = [], True
    for metric, weighted in weighted_scores(cfg, predictions, tta).items():
        score, (low, high) = interval(weighted, len(predictions))
        told = published.get(metric)
        parts.append(f'{metric} {score:.1f} (95 % interval {low:.1f} to {high:.1f}'
                     + (f'; published, of all images: {told}' if told is not None else '') + ')')
        met &= told is None or low - CLOSE <= told <= high + CLOSE
    return Verdict(f'{name}: a quick look at {images} images, not entered in the ledger: '
                   f'{", ".join(parts)}: '
                   + ('nothing speaks against the published number' if met else
                      'the published number is outside: score the whole set'), met)


def interval(weighted: Callable, count: int) -> tuple[float, tuple[float, float]]:
    """(a score, its 95 % interval), from images drawn with replacement.

    Args:
        weighted: ``weighted(weights) -> score`` where image i counts ``weights[i]`` times.
        count: of images.
    """
    rng = np.random.default_rng(0)
    scores = [weighted(rng.multinomial(count, np.full(count, 1 / count)))
              for _ in range(RESAMPLES)]
    return weighted(np.ones(count)), tuple(np.percentile(scores, [2.5, 97.5]))


def weighted_scores(cfg, predictions: list[dict], tta: bool) -> dict[str, Callable]:
    """{metric of the ledger: its score as a function of how often each image counts}."""
    dataset = build_dataset(cfg)
    evaluator = metrics_of(cfg, 'test')[0]
    with quiet():
        metric = METRICS.build(evaluator)
    metric.dataset_meta = dataset.metainfo
    if evaluator.type.endswith('IoUMetric'):
        return {'mIoU (ms+flip)' if tta else 'mIoU': weighted_miou(metric, predictions, dataset)}
    truth, rows = rows_of_coco(metric, predictions, dataset.metainfo['classes'])
    ids = [prediction['img_id'] for prediction in predictions]
    return {f'{word} AP': weighted_ap(truth, rows[kind], kind, metric.cat_ids, ids)
            for kind, word in (('bbox', 'box'), ('segm', 'mask'))
            if kind in metric.metrics and kind in rows}


def weighted_ap(truth, rows: list[dict], kind: str, categories: list, ids: list) -> Callable:
    """COCO's AP (percent) of repeated images, from one matching of each image.

    An image that counts twice has each of its detections twice, one behind the other: at the recall
    that the second brings the precision is what it is with both.
    """
    from mmdet.datasets.api_wrappers import COCO, COCOeval
    with quiet():
        found = truth.loadRes(rows) if rows else COCO()
        if not rows:
            found.dataset = {**truth.dataset, 'annotations': []}
            found.createIndex()
        evaluation = COCOeval(truth, found, kind)
        params = evaluation.params
        params.catIds, params.imgIds, params.maxDets = list(categories), list(ids), [100]
        params.areaRng, params.areaRngLbl = params.areaRng[:1], params.areaRngLbl[:1]
        evaluation.evaluate()
    place = {number: i for i, number in enumerate(ids)}
    classes = {}
    for image in filter(None, evaluation.evalImgs):
        classes.setdefault(image['category_id'], []).append(image)
    tables = []
    for parts in classes.values():
        owner = np.concatenate([np.full(len(part['dtScores']), place[part['image_id']])
                                for part in parts]).astype(int)
        order = np.argsort(-np.concatenate([part['dtScores'] for part in parts]), kind='mergesort')
        matched = np.concatenate([part['dtMatches'] for part in parts], 1)[:, order] > 0
        counts = ~np.concatenate([part['dtIgnore'] for part in parts], 1)[:, order].astype(bool)
        true = np.zeros(len(ids))
        for part in parts:
            true[place[part['image_id']]] = (np.array(part['gtIgnore']) == 0).sum()
        if true.sum():
            tables.append((owner[order], matched & counts, ~matched & counts, true))
    recalls = evaluation.params.recThrs

    def score(weights: np.ndarray) -> float:
        values = []
        for owner, right, wrong, true in tables:
            positives = weights @ true
            if not positives:
                continue
            hits = np.cumsum(right * weights[owner], 1)  # (IoU thresholds, detections)
            misses = np.cumsum(wrong * weights[owner], 1)
            precision = hits / np.maximum(hits + misses, np.spacing(1))
            precision = np.maximum.accumulate(precision[:, ::-1], 1)[:, ::-1]
            precision = np.pad(precision, ((0, 0), (0, 1)))  # 0 where the recall is not reached
            values.append(np.mean([line[np.searchsorted(recall, recalls, side='left')]
                                   for line, recall in zip(precision, hits / positives,
                                                           strict=True)]))
        return 100 * float(np.mean(values)) if values else float('nan')

    return score


def weighted_miou(metric, predictions: list[dict], dataset) -> Callable:
    """mIoU (percent) of repeated images."""
    count, confusions = len(dataset.metainfo['classes']), []
    for i, prediction in enumerate(predictions):
        true = dataset[i]['data_samples'].gt_sem_seg.data.squeeze(0).numpy()
        found = prediction['pred_sem_seg']['data'].squeeze(0).numpy().astype(int)
        valid = true != metric.ignore_index
        confusions.append(np.bincount(true[valid] * count + found[valid],
                                      minlength=count**2))
    confusions = np.stack(confusions)
    return lambda weights: float(np.nanmean(overlap((weights @ confusions).reshape(count, count))))


def run_all(names: list[str], run: Callable) -> tuple[list[str], bool]:
    """Lines about all, whatever happens to one; and whether all published numbers are met.

    Args:
        names: of experiments.
        run: ``run(name) -> Verdict``.
    """
    lines, met = [], True
    for name in names:
        try:
            result = run(name)
            lines.append(result.line)
            met &= result.met
        except Exception as error:
            if (message := user_message(error)) is None:
                raise
            met = False
            lines.append(f'{name}: not scored: {some(message.splitlines(), 3)}')
        print(lines[-1], flush=True)
    return lines, met
