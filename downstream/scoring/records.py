"""What ``tools/test.py`` leaves behind: predictions (--out), and a record of its scores."""
import json
import os
import platform
import shlex
import sys
import time
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.dist import get_world_size, master_only
from mmengine.evaluator import DumpResults
from mmengine.hooks import Hook
from mmengine.registry import METRICS

from backbones.download import sha256
from backbones.pretrained import local_file
from backbones.weights import entry_of, is_name

from ..experiments import CONFIGS
from ..saving import write_whole
from ..training.recorded import read_config_text

# Parts of a config that make a training what it is, and entries in them that do not: where files
# lie and how they are read.
RECIPE = 'model', 'train_cfg', 'optim_wrapper', 'param_scheduler', 'train_dataloader'
INDIFFERENT = {'data_root', 'backend_args', 'checkpoint', 'num_workers', 'persistent_workers',
               'pin_memory', 'batch_size', 'use_checkpoint', 'with_cp', 'val_interval'}


@METRICS.register_module()
class DumpSegResults(DumpResults):
    """Dump the predicted label maps as bytes, without the logits: 150 floats a pixel fill any disk.

    (mmdet's DumpDetResults is for detection.)
    """

    def process(self, data_batch, predictions):
        kept = [{key: value for key, value in prediction.items()
                 if key not in ('seg_logits', 'gt_sem_seg')} for prediction in predictions]
        for prediction in kept:
            labels = prediction['pred_sem_seg']['data']
            if labels.max() < 256:
                prediction['pred_sem_seg'] = {'data': labels.to(torch.uint8)}
        super().process(data_batch, kept)


class RecordTest(Hook):
    """Writes the scores of a test to test_record.json in its log folder, for tools/results.py.

    Beside the scores: the checkpoint's hash, the number of images, machine, date, command, and
    where the training that the checkpoint comes from was not the experiment's recipe.

    Args:
        checkpoint: path, URL or name.
        tta: whether predictions are merged from several views.
    """
    priority = 'VERY_LOW'

    def __init__(self, checkpoint: str, tta: bool):
        self.checkpoint, self.tta = checkpoint, tta

    def after_load_checkpoint(self, runner, checkpoint):
        self.meta = checkpoint.get('meta') or {}

    @master_only
    def after_test_epoch(self, runner, metrics=None):
        experiment = Path(runner.cfg.filename).stem
        record = dict(
            experiment=experiment,
            metrics={key: float(value) for key, value in (metrics or {}).items()},
            dataset=type(runner.test_dataloader.dataset).__name__,
            images=len(runner.test_dataloader.dataset),
            tta=self.tta,
            deviations=deviations(self.meta, experiment),
            test_deviations=[] if self.tta else changes_in_test(runner.cfg, experiment),
            checkpoint=f'{local_file(self.checkpoint).name}, sha256 {file_hash(self.checkpoint)}',
            date=time.strftime('%Y-%m-%d', time.gmtime()),
            machine=machine(),
            command=shlex.join(sys.argv).replace(f'{os.getcwd()}/', ''))
        if is_name(self.checkpoint) and entry_of(self.checkpoint).get('config') == experiment:
            mark_released(record, self.checkpoint)
        path = Path(runner.log_dir) / 'test_record.json'
        write_whole(path, json.dumps(record, indent=1) + '\n')


def mark_released(record: dict, weights: str):
    """Note in a record that the checkpoint is what the authors released for the experiment.

    It was not trained here: that there is no record of its training is no deviation.
    """
    record.update(released=weights, deviations=[])


def changes_in_test(cfg: Config, experiment: str) -> list[str]:
    """In words, where a test was another than the experiment's: sizes, thresholds.

    Args:
        cfg: of the test, without test-time augmentation.
        experiment: name of a file in configs/; of others nothing is known.
    """
    path = CONFIGS / f'{experiment}.py'
    if not path.is_file():
        return []
    recipe = Config.fromfile(path, import_custom_modules=False)
    ours, theirs = (dict(entry for key, node in (
        ('test_dataloader.dataset.pipeline', each.test_dataloader.dataset.get('pipeline')),
        ('model.test_cfg', each.model.get('test_cfg'))) for entry in flat(node, key))
        for each in (cfg, recipe))
    changed = [key for key in dict.fromkeys([*theirs, *ours]) if ours.get(key) != theirs.get(key)]
    return [f'{key} {ours.get(key)}, not {theirs.get(key)}' for key in changed[:5]]


def deviations(meta: dict, experiment: str) -> list[str]:
    """In words, where a checkpoint's training was another than the experiment's.

    Args:
        meta: of the checkpoint, as mmengine writes it.
        experiment: name of a file in configs/.
    """
    path = CONFIGS / f'{experiment}.py'
    if not path.is_file():
        return [f'{experiment} is no experiment in configs/']
    if 'cfg' not in meta:
        return ['weights without a record of their training']
    try:
        return changes_in_training(meta, Config(read_config_text(meta['cfg'])), path)
    except (KeyError, AttributeError, TypeError):  # what no training of ours writes
        return ['weights with a record of their training that cannot be read']


def changes_in_training(meta: dict, trained: Config, path: Path) -> list[str]:
    """``deviations`` of the config that a checkpoint records from the experiment's file."""
    recipe = Config.fromfile(path, import_custom_modules=False)
    found = []
    done, wanted = ((meta['epoch'], trained.train_cfg.max_epochs)
                    if 'max_epochs' in trained.train_cfg else
                    (meta['iter'], trained.train_cfg.max_iters))
    if done < wanted:
        found.append(f'trained {done} of {wanted} '
                     f'{"epochs" if "max_epochs" in trained.train_cfg else "iterations"}')
    total = trained.train_dataloader.batch_size * trained.get('world_size', 1)
    if total != recipe.auto_scale_lr.base_batch_size:
        found.append(f'{total} images an iteration, not {recipe.auto_scale_lr.base_batch_size}')
    ours, theirs = ({key: value for part in RECIPE for key, value in flat(cfg[part], part)}
                    for cfg in (trained, recipe))
    changed = [key for key in dict.fromkeys([*theirs, *ours]) if ours.get(key) != theirs.get(key)]
    found += [f'{key} {ours.get(key)}, not {theirs.get(key)}' for key in changed[:5]]
    if len(changed) > 5:
        found.append(f'{len(changed) - 5} more entries of the config differ')
    return found


def flat(node, name: str):
    """(dotted key, value) of all entries below that matter."""
    entries = (node.items() if isinstance(node, dict) else
               enumerate(node) if isinstance(node, (list, tuple)) else None)
    if entries is None:
        yield name, node
    else:
        for key, value in entries:
            if key not in INDIFFERENT:
                yield from flat(value, f'{name}.{key}')


def file_hash(checkpoint: str) -> str:
    """The first eight digits of a file's SHA-256."""
    with open(local_file(checkpoint), 'rb') as file:
        return sha256(file)[:8]


def machine() -> str:
    if torch.cuda.is_available():
        return f'{get_world_size()} x {torch.cuda.get_device_name()}'
    return f'CPU ({platform.machine()}, {os.cpu_count()} cores)'
