"""Whether a run that goes on is still the experiment that was begun, and what differs if not."""
import hashlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.dist import get_world_size, is_main_process
from mmengine.hooks import Hook
from mmengine.runner import EpochBasedTrainLoop, Runner

from ..errors import UserError, shown
from .checkpoints import tensors_of, whole_state
from .fine_tuning import classes_of
from .launching import without_sync_bn
from .recorded import Text, read_config_text
from .schedules import fast_forward

LINES = 12  # of differences that a message has
SAMPLED = 1000  # images whose names and boxes are compared
# What makes a training what it is: sections of a config, and in them the keys (all but those that
# are named) that do.
TRAINED = {'train_cfg': {'type', 'by_epoch', 'max_epochs', 'max_iters'},
           'default_hooks': {'param_scheduler', 'sampler_seed'}}
NOT_TRAINED = {
    # Start weights, which the checkpoint's take the place of; memory; how it predicts.
    'model': {'init_cfg', 'pretrained', 'use_checkpoint', 'with_cp', 'test_cfg'},
    'data_preprocessor': set(),
    # Where the files lie and how they are read. Classes, images and the batch are compared below.
    'train_dataloader': {'num_workers', 'persistent_workers', 'pin_memory', 'prefetch_factor',
                         'timeout', 'batch_size', 'data_root', 'data_prefix', 'ann_file',
                         'backend_args', 'file_client_args', 'metainfo', 'lazy_init',
                         'serialize_data', 'max_refetch'},
    'optim_wrapper': {'accumulative_counts', 'use_fsdp'},
    'param_scheduler': {'verbose'}}
# Hooks that only look.
LOOKING = {'NumClassCheckHook', 'CheckInvalidLossHook', 'EmptyCacheHook', 'MemoryProfilerHook',
           'ProfilerHook', 'NPUProfilerHook', 'DetVisualizationHook', 'SegVisualizationHook'}
# What an optimizer may be given anew without making its state another one's.
RATES = {'lr', 'weight_decay', 'momentum', 'betas', 'eps', 'dampening', 'alpha'}
NONE = Text('(none)')


class SameExperiment(Hook):
    """Refuses to go on with a run as another experiment, unless that is asked for.

    Args:
        cfg: the present config, before the runner writes it into the work dir.
        source: what to call the checkpoint.
        allow: go on all the same. Rates and schedule are then the present config's, as though the
            run had had them from its beginning, where mmengine would keep those of the checkpoint.
    """
    priority = 'VERY_LOW'

    def __init__(self, cfg: Config, source: str, allow: bool = False):
        self.source, self.allow, self.resume = source, allow, bool(cfg.get('resume'))
        self.data = None
        written = Path(cfg.work_dir, Path(cfg.filename).name)
        self.config = written, written.read_bytes() if written.is_file() else None

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict):
        self.data = self.data or record_of(runner.train_dataloader.dataset)
        checkpoint['meta']['data'] = self.data

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict):
        if not self.resume or 'optimizer' not in checkpoint:  # weights alone: CheckFits tells
            return
        meta = checkpoint.get('meta') if isinstance(checkpoint.get('meta'), dict) else {}
        recorded = read_config_text(meta.get('cfg'))
        if recorded is None:
            runner.logger.warning(f'{self.source} has no readable record of its config: whether '
                                  'this is still the same experiment could not be compared.')
            return
        present = read_config_text(
            Config(runner.cfg.to_dict(), format_python_code=False).pretty_text) or {}
        present['world_size'] = get_world_size()
        self.data = record_of(runner.train_dataloader.dataset)
        found = [*of_data(runner, checkpoint, self.data), *of_configs(recorded, present),
                 *of_seed(meta, recorded, present)]
        lines = [f'  {place}: {told(old)} -> {told(new)}' for place, old, new in found]
        if len(lines) > LINES:
            lines[LINES:] = [f'  and {len(lines) - LINES} more']
        if found and not self.allow:
            self.put_config_back()
            raise UserError('\n'.join([
                f'{self.source} is of another experiment than this one. What differs:', *lines,
                'With --allow-changes the run goes on all the same, with what is set now.'
                if same_shapes(runner, checkpoint) else
                "Its weights don't fit the model any more: begin another run with them by "
                '--cfg-options load_from=CHECKPOINT.']))
        if found:
            runner.logger.warning('\n'.join([
                f'--allow-changes: from here on this is another experiment than that of '
                f'{self.source}. What differs:', *lines]))
            for line in take_present(runner, checkpoint, [place for place, *_ in found]):
                runner.logger.warning(line)
        if 'data' not in meta:
            runner.logger.warning(f'{self.source} has no record of its training images: whether '
                                  'these are the same could not be compared.')
        before = recorded.get('world_size')
        if isinstance(before, int) and before != present['world_size']:
            runner.logger.warning(
                f'The run had {before} processes and has {present["world_size"]} now: from here on '
                'the order of the images and the random draws are others, and so are the '
                'statistics of BatchNorm, which are those of the images of one process.')

    def put_config_back(self):
        """Undo what the runner wrote into the work dir: the config of a run that is refused."""
        path, content = self.config
        if not is_main_process():
            return
        if content is None:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(content)


def record_of(dataset) -> dict[str, Any]:
    """What tells data sets apart, wherever their files lie: plain data.

    Returns:
        'images': the samples of an epoch; 'sample': a hash of the names, classes and boxes of up to
        ``SAMPLED`` of them.
    """
    images = len(dataset)
    while not hasattr(dataset, 'get_data_info') and hasattr(dataset, 'dataset'):
        dataset = dataset.dataset
    if not hasattr(dataset, 'get_data_info'):
        return dict(images=images)
    content = hashlib.sha256()
    for index in range(0, len(dataset), max(1, len(dataset) // SAMPLED)):
        info = dataset.get_data_info(index)
        content.update(repr((
            Path(info.get('img_path') or '').name,
            [(int(each['bbox_label']), [round(float(number)) for number in each['bbox']])
             for each in info.get('instances') or () if {'bbox', 'bbox_label'} <= each.keys()]
        )).encode())
    return dict(images=images, sample=content.hexdigest()[:16])


Found = Iterator[tuple[str, Any, Any]]  # place, what it was, what it is


def of_data(runner: Runner, checkpoint: dict, present: dict) -> Found:
    there = list(classes_of(checkpoint))
    here = list((getattr(runner.train_dataloader.dataset, 'metainfo', None) or {}).get('classes')
                or ())
    if there and here and there != here:
        if len(there) != len(here):
            yield 'classes', len(there), len(here)
        gone, new = ([name for name in names if name not in others]
                     for names, others in ((there, here), (here, there)))
        yield ('names of classes', gone or NONE, new or NONE) if gone or new else (
            'order of classes', there, here)
    recorded = checkpoint['meta'].get('data')
    if not isinstance(recorded, dict):
        return
    if recorded.get('images') != present['images']:
        yield 'training images', recorded.get('images'), present['images']
    elif recorded.get('sample') != present.get('sample'):
        yield ('names, classes or boxes of training images', Text('as recorded'), Text('others'))


def of_seed(meta: dict, recorded: dict, present: dict) -> Found:
    old = meta.get('seed', part(recorded, 'randomness').get('seed'))
    new = part(present, 'randomness').get('seed')
    if None not in (old, new) and old != new:
        yield 'randomness.seed', old, new


def of_configs(recorded: dict, present: dict) -> Found:
    """Differences of two configs that make another training.

    Args:
        recorded, present: as ``read_config_text`` has them, with the number of processes as
            'world_size'; unless it is known, it is taken to be the same.
    """
    recorded = {'world_size': present['world_size'], **recorded}
    # On CPUs, several processes do with BN for SyncBN (launching.fit_launcher).
    if any('device_ids' in part(each, 'model_wrapper_cfg') for each in (recorded, present)):
        recorded, present = without_sync_bn(recorded), without_sync_bn(present)
    yield from differences(counts(recorded), counts(present), '')
    for name in (*TRAINED, *NOT_TRAINED):
        yield from differences(section(recorded, name), section(present, name), name)
    yield from differences(*([hook for hook in each.get('custom_hooks') or []
                              if not (isinstance(hook, dict) and hook.get('type') in LOOKING)]
                             for each in (recorded, present)), 'custom_hooks')


def part(cfg: dict, *names: str) -> dict:
    """An inner dict of a config; empty where there is something else."""
    for name in names:
        cfg = cfg.get(name)
        if not isinstance(cfg, dict):
            return {}
    return cfg


def counts(cfg: dict) -> dict[str, Any]:
    """The numbers of images that a config and its number of processes come to."""
    loader = part(cfg, 'train_dataloader')
    iteration = product(part(loader, 'batch_sampler').get('batch_size', loader.get('batch_size')),
                        cfg['world_size'])
    step = product(iteration, part(cfg, 'optim_wrapper').get('accumulative_counts', 1))
    # An experiment that counts iterations has its length in them.
    return {'images a step': step, **({'images an iteration': iteration}
                                      if 'max_iters' in part(cfg, 'train_cfg') else {})}


def product(first: Any, second: Any) -> Any:
    numbers = isinstance(first, int | float) and isinstance(second, int | float)
    return first * second if numbers else None


def section(cfg: dict, name: str) -> Any:
    """What counts of a section."""
    found = cfg.get(name)
    if name in TRAINED:
        return {key: value for key, value in part(cfg, name).items() if key in TRAINED[name]}
    found = without(found, NOT_TRAINED[name])
    scale = part(cfg, 'auto_scale_lr')
    if name == 'optim_wrapper' and scale.get('enable') and 'lr' in part(cfg, name, 'optimizer'):
        loader = part(cfg, 'train_dataloader')
        base = scale.get('base_batch_size')
        if isinstance(base, int) and base > 0:  # as mmengine does, not counting what is accumulated
            images = product(loader.get('batch_size'), cfg['world_size'])
            found['optimizer']['lr'] = product(product(found['optimizer']['lr'], images), 1 / base)
    return found


def without(node: Any, names: set[str]) -> Any:
    """A copy of a part of a config without some keys, however deep."""
    if isinstance(node, dict):
        return {key: without(value, names) for key, value in node.items() if key not in names}
    if isinstance(node, list):
        return [without(value, names) for value in node]
    return node


def differences(old: Any, new: Any, place: str) -> Found:
    if isinstance(old, dict) and isinstance(new, dict):
        if old.get('type') != new.get('type'):  # the rest are another thing's arguments
            yield f'{place}.type'.lstrip('.'), old.get('type', NONE), new.get('type', NONE)
            return
        for key in sorted({*old, *new}, key=str):
            yield from differences(old.get(key), new.get(key), f'{place}.{key}'.lstrip('.'))
    elif (isinstance(old, list) and isinstance(new, list) and len(old) == len(new)
          and any(isinstance(item, dict | list) for item in [*old, *new])):
        for index, pair in enumerate(zip(old, new, strict=True)):
            yield from differences(*pair, f'{place}.{index}')
    elif not alike(old, new):
        yield place, old, new


def alike(old: Any, new: Any) -> bool:
    if isinstance(old, float) or isinstance(new, float):
        return (isinstance(old, int | float) and isinstance(new, int | float)
                and (math.isclose(old, new, rel_tol=1e-9) or old != old and new != new))
    empty = (None, [], {})  # nothing, said in several ways
    return old == new or (old in empty and new in empty)


def told(value: Any) -> str:
    """A value of a config, for a line."""
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        return f'{len(value)} entries ({", ".join(str(item.get("type")) for item in value)[:80]})'
    return str(value)[:80] if isinstance(value, Text) else shown(value)


def same_shapes(runner: Runner, checkpoint: dict) -> bool:
    """Whether the parameters of the model are all in a checkpoint."""
    own, theirs = whole_state(runner), tensors_of(checkpoint['state_dict'])
    return all(name in theirs and theirs[name].shape == value.shape for name, value in own.items()
               if not name.endswith('num_batches_tracked'))


def take_present(runner: Runner, checkpoint: dict, places: list[str]) -> list[str]:
    """Put into a checkpoint what is set now, where resuming would take what was set before.

    Args:
        runner: with an optimizer and schedulers as they are at the beginning of a run. They are
            changed too, and resuming then puts the checkpoint's state into them.
        places: what differs.

    Returns:
        The lines to log.

    Raises:
        UserError: another optimizer, with FSDP.
    """
    if 'randomness.seed' in places:
        checkpoint['meta']['seed'] = runner.cfg.randomness.seed
    if (not any(place.startswith(('optim_wrapper', 'param_scheduler', 'train_cfg', 'images'))
                for place in places)
            or 'param_groups' not in checkpoint.get('optimizer', {})
            or isinstance(runner.param_schedulers, dict)):
        return []  # (several optimizers: they go on as they were)
    optimizer = runner.optim_wrapper.optimizer
    loop, meta = runner.train_loop, checkpoint['meta']
    schedulers = runner.param_schedulers or []
    waiting = [each for each in schedulers if getattr(each, 'need_val_args', False)]
    fast_forward([each for each in schedulers if each not in waiting],
                 meta['epoch'] if isinstance(loop, EpochBasedTrainLoop) else 0, meta['iter'],
                 len(runner.train_dataloader))
    if schedulers and not waiting:
        checkpoint['param_schedulers'] = [each.state_dict() for each in schedulers]
    lines = ['The learning rate fits the scores only as far as the checkpoint tells: '
             f'{", ".join(type(each).__name__ for each in waiting)} goes on from its state.'
             ] if waiting else []
    theirs = checkpoint['optimizer']['param_groups']
    before = theirs[0].get('lr')
    whole = getattr(runner, 'strategy', None) is not None  # FSDP: other parameters, same groups
    optimizers = {place.removeprefix('optim_wrapper.optimizer.').split('.')[0]
                  for place in places if place.startswith('optim_wrapper.optimizer')}
    if optimizers - RATES or len(theirs) != len(optimizer.param_groups) or not whole and any(
            len(one['params']) != len(other['params'])
            for one, other in zip(theirs, optimizer.param_groups, strict=True)):
        if whole:
            raise UserError(f'{type(optimizer).__name__} cannot take over the state of the '
                            "checkpoint's optimizer. Begin another run from its weights: "
                            '--cfg-options load_from=CHECKPOINT')
        checkpoint['optimizer'] = runner.optim_wrapper.state_dict()
        lines.append('The optimizer is another one: its state begins anew.')
    else:
        for group, present in zip(theirs, optimizer.param_groups, strict=True):
            group.update({key: value for key, value in present.items() if key != 'params'})
        settings = getattr(runner.optim_wrapper, 'base_param_settings', None)
        if settings and checkpoint['optimizer'].get('base_param_settings'):
            checkpoint['optimizer']['base_param_settings'].update(
                {key: value for key, value in settings.items() if key != 'params'})
    after = optimizer.param_groups[0]['lr']
    return [*lines, f'The learning rate goes on at {after:g}, where it was {before:g}: as though '
            'the run had had the present schedule from its beginning.']
