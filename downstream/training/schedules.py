"""Another length and another batch for an experiment, with what depends on them."""
import warnings
from collections.abc import Sequence

from mmengine.config import Config
from mmengine.optim import _ParamScheduler

from ..errors import UserError

TIMES = 'begin', 'end', 'T_max'


def set_length(cfg: Config, epochs: int | None = None, iters: int | None = None) -> list[str]:
    """Stretch or shorten a schedule: milestones and warm-up keep their share of it.

    Args:
        cfg: the experiment; changed in place.
        epochs, iters: the new length, one of them, as the experiment counts.

    Returns:
        The line to log.

    Raises:
        UserError: the experiment counts the other, or the length is none.
    """
    key, new, other = (('max_epochs', epochs, '--iters') if epochs is not None else
                       ('max_iters', iters, '--epochs'))
    old = cfg.train_cfg.get(key)
    unit = key.removeprefix('max_')
    if not old:
        raise UserError(f'--{unit}: this experiment does not count {unit}; use {other}')
    if new < 1:
        raise UserError(f'--{unit} {new}: give a number from 1 on')
    stretch(cfg, key, new / old)
    return [f'The schedule has {new} {unit} in place of {old}, warm-up and steps in proportion.']


def stretch(cfg: Config, key: str, factor: float):
    """Multiply the length ``train_cfg[key]`` and all times of the schedule."""
    length = cfg.train_cfg[key] = max(1, round(cfg.train_cfg[key] * factor))
    cfg.train_cfg.val_interval = max(1, min(length, round(
        cfg.train_cfg.get('val_interval', 1) * min(1, factor))))
    schedulers = cfg.get('param_scheduler') or []
    for scheduler in [schedulers] if isinstance(schedulers, dict) else schedulers:
        whole = key == 'max_epochs' and scheduler.get('by_epoch', True)
        for time in TIMES:
            if isinstance(scheduler.get(time), int | float) and scheduler[time] > 0:
                scheduler[time] = max(1, round(scheduler[time] * factor))
        if 'milestones' in scheduler:
            # Steps that fall together are one step less: a short schedule still has all of them.
            steps = [max(1, round(step * factor)) for step in scheduler.milestones]
            for i in range(len(steps) - 1, -1, -1):
                later = steps[i + 1] if i + 1 < len(steps) else length if whole else None
                if later is not None and steps[i] >= later:
                    steps[i] = later - 1
            scheduler.milestones = [step for step in steps if step > 0]
    hook = cfg.default_hooks.get('checkpoint') or {}
    if key == 'max_iters' and not hook.get('by_epoch', True) and hook.get('interval'):
        hook.interval = max(1, min(hook.interval, cfg.train_cfg.val_interval))


def set_batch(cfg: Config, batch: int | None, accumulate: int | None, world_size: int) -> list[str]:
    """Another number of images a step, with the learning rate and the length that go with it.

    The rate is in proportion to the images of a step (Goyal et al., arXiv 1706.02677); a length in
    iterations is in inverse proportion, so that as many images are seen.

    Args:
        cfg: the experiment; changed in place. mmengine scales its rate (auto_scale_lr) by the
            images of an iteration; what is accumulated comes on top here.
        batch: images an iteration and process; None: the experiment's.
        accumulate: iterations that one step sums up; None: one.
        world_size: processes.

    Returns:
        The line to log.

    Raises:
        UserError: a number below 1, or an experiment that does not say what its rate is for.
    """
    for flag, value in (('--batch', batch), ('--accumulate', accumulate)):
        if value is not None and value < 1:
            raise UserError(f'{flag} {value}: give a number from 1 on')
    if 'base_batch_size' not in (cfg.get('auto_scale_lr') or {}):
        raise UserError('--batch and --accumulate: the config has no auto_scale_lr.base_batch_size,'
                        ' the images a step that its learning rate is for')
    batch = batch or cfg.train_dataloader.batch_size
    accumulate = accumulate or 1
    cfg.train_dataloader.batch_size = batch
    cfg.auto_scale_lr.enable = True
    if accumulate > 1:
        cfg.optim_wrapper.accumulative_counts = accumulate
        cfg.optim_wrapper.optimizer.lr *= accumulate
    base, iteration = cfg.auto_scale_lr.base_batch_size, batch * world_size
    if 'max_iters' in cfg.train_cfg:
        stretch(cfg, 'max_iters', base / iteration)
    return [f'{iteration * accumulate} images a step ({batch} x {world_size} processes x '
            f'{accumulate} accumulated), where the experiment has {base}: the learning rate is '
            f'{iteration * accumulate / base:g} times its own'
            + (f', and there are {cfg.train_cfg.max_iters} iterations'
               if 'max_iters' in cfg.train_cfg else '') + '.']


def fast_forward(schedulers: Sequence[_ParamScheduler], epochs: int, iters: int,
                 epoch_length: int):
    """Bring newly built schedulers, and the rates of their optimizer, to where a run is.

    Args:
        epochs: that are done; 0 in an experiment that counts iterations.
        iters: that are done.
        epoch_length: iterations of an epoch. Where the epochs had another length, their ends are
            taken to be evenly spaced.
    """
    if epochs and not epochs * epoch_length <= iters < (epochs + 1) * epoch_length:
        epoch_length = iters / epochs
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # they miss the steps of the optimizer
        ended = 0
        for number in range(1, iters + 1):
            for scheduler in schedulers:
                if not scheduler.by_epoch:
                    scheduler.step()
            while ended < epochs and number >= (ended + 1) * epoch_length - 1e-6:
                ended += 1
                for scheduler in schedulers:
                    if scheduler.by_epoch:
                        scheduler.step()
