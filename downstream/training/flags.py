"""What the flags of tools/train.py set in a config."""
import os
from pathlib import Path

from mmengine.registry import MODELS, OPTIMIZERS
from mmengine.runner import find_latest_checkpoint

from backbones.base import Backbone
from backbones.pretrained import TRUSTED

from ..data.own import use_data
from ..errors import UserError
from .backbones import use_backbone
from .launching import has_accelerator
from .schedules import set_batch, set_length


def apply_flags(cfg, args):
    """Set in the config what the flags ask for. Returns the lines to log about it."""
    optimizer = cfg.optim_wrapper.get('optimizer', {}).get('type')
    if isinstance(optimizer, str) and OPTIMIZERS.get(optimizer) is None:
        raise UserError(f'optim_wrapper.optimizer: there is no optimizer {optimizer!r}')
    if args.amp:
        if not has_accelerator():
            raise UserError('--amp: mixed precision needs a GPU, and there is none here; without '
                            '--amp training runs in float32')
        wrapper = cfg.optim_wrapper.get('type', 'OptimWrapper')
        if wrapper not in ('OptimWrapper', 'AmpOptimWrapper'):
            raise UserError(f'--amp: takes the place of OptimWrapper, but the config has {wrapper}')
        cfg.optim_wrapper.type = 'AmpOptimWrapper'
        cfg.optim_wrapper.setdefault('loss_scale', 'dynamic')
    if args.auto_scale_lr:
        if 'base_batch_size' not in (cfg.get('auto_scale_lr') or {}):
            raise UserError('--auto-scale-lr: the config has no auto_scale_lr.base_batch_size')
        cfg.auto_scale_lr.enable = True
    if args.resume:
        cfg.resume = True
        cfg.load_from = None if args.resume == 'auto' else args.resume
    backbone = cfg.model.get('backbone') or {}
    init = backbone.get('init_cfg')
    pretrained = isinstance(init, dict) and init.get('checkpoint')
    if args.trust_checkpoint:
        TRUSTED.update(filter(None, (cfg.get('load_from'), pretrained)))
    if (args.allow_partial and pretrained
            and issubclass(MODELS.get(backbone.type) or object, Backbone)):
        init.allow_partial = True
    if cfg.get('load_from') and '://' not in cfg.load_from and not Path(cfg.load_from).is_file():
        raise UserError(f'there is no checkpoint file {cfg.load_from}')
    if cfg.get('resume') and not cfg.get('load_from') and not find_latest_checkpoint(cfg.work_dir):
        return [f'--resume: no checkpoint in {cfg.work_dir}, the run starts from scratch.']
    return []


def fit_to_data(cfg, args):
    """Another backbone, data, length, batch. Returns the lines to log about it."""
    notes = use_backbone(cfg, args.backbone, args.cfg_options) if args.backbone else []
    if args.data:
        notes += use_data(cfg, args.data, args.val_split)
    elif args.val_split:
        raise UserError('--val-split: splits the images that --data names, and there is no --data')
    if args.epochs is not None and args.iters is not None:
        raise UserError('--epochs and --iters: an experiment counts one of them')
    if args.batch is not None or args.accumulate is not None:
        processes = os.environ.get('WORLD_SIZE') or os.environ.get('SLURM_NTASKS') or 1
        alone = args.launcher == 'none'
        notes += set_batch(cfg, args.batch, args.accumulate, 1 if alone else int(processes))
    if args.epochs is not None or args.iters is not None:
        notes += set_length(cfg, args.epochs, args.iters)
    return notes


def about_weights(cfg):
    """The line to log when nothing names weights for the backbone."""
    backbone = cfg.model.get('backbone') or {}
    init = backbone.get('init_cfg') or {}
    if cfg.get('load_from') or cfg.get('resume') or not backbone or backbone.get('pretrained') or (
            isinstance(init, dict) and init.get('checkpoint')):
        return []
    return ['The backbone starts from random weights: the config names none. To give it some: '
            '--cfg-options model.backbone.init_cfg.type=Pretrained '
            'model.backbone.init_cfg.checkpoint=FILE']
