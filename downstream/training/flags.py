"""What the flags of tools/train.py set in a config."""
import os

import torch
from mmengine.registry import MODELS, OPTIMIZERS

from backbones.base import Backbone
from backbones.pretrained import TRUSTED, kind_of, local_file
from backbones.weights import is_name, known, weights_for

from ..data.own import use_data
from ..errors import UserError
from .backbones import use_backbone
from .launching import has_accelerator
from .processes import first_does
from .resuming import find_checkpoint
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
    if args.deterministic:
        set_deterministic(cfg)
    if args.auto_scale_lr:
        if 'base_batch_size' not in (cfg.get('auto_scale_lr') or {}):
            raise UserError('--auto-scale-lr: the config has no auto_scale_lr.base_batch_size')
        cfg.auto_scale_lr.enable = True
    notes = []
    if args.resume:
        cfg.resume = True
        if args.resume != 'auto':
            cfg.load_from = args.resume
    if args.allow_changes and not cfg.get('resume'):
        raise UserError('--allow-changes: a run that goes on may be changed; it takes --resume')
    if cfg.get('resume'):
        notes += first_does(cfg, lambda: find_checkpoint(cfg, args.resume))
    notes += use_weights(cfg, args.weights) if args.weights else []
    backbone = cfg.model.get('backbone') or {}
    init = backbone.get('init_cfg')
    pretrained = isinstance(init, dict) and init.get('checkpoint')
    if args.trust_checkpoint:
        TRUSTED.update(filter(None, (cfg.get('load_from'), pretrained)))
    if (args.allow_partial and pretrained
            and issubclass(MODELS.get(backbone.type) or object, Backbone)):
        init.allow_partial = True
    load_from = cfg.get('load_from')
    if load_from and '://' not in load_from and not local_file(load_from).is_file():
        raise UserError(f'there is no checkpoint file {load_from}')
    if pretrained and not load_from and is_name(pretrained):
        local_file(pretrained)  # before anything is built
    return notes


def set_deterministic(cfg):
    """Have the same numbers on the same machine and versions, or an error where that cannot be."""
    cfg.setdefault('randomness', {})
    cfg.randomness['deterministic'] = True  # torch's deterministic algorithms; cuDNN's, no search
    cfg.setdefault('env_cfg', {})
    cfg.env_cfg['cudnn_benchmark'] = False
    if cfg.randomness.get('seed') is None:
        cfg.randomness['seed'] = 0
    # cuBLAS is deterministic with a workspace of its own alone; it asks when CUDA begins.
    os.environ.setdefault('CUBLAS_WORKSPACE_CONFIG', ':4096:8')


def use_weights(cfg, source):
    """Let the backbone start from other weights. Returns the lines to log about it.

    Args:
        source: 'auto', 'none', the name of published weights, a path or a URL.

    Raises:
        UserError: there is no backbone, or none were published for it, or no such name.
    """
    backbone = cfg.model.get('backbone')
    if not backbone:
        raise UserError(f'--weights: {cfg.model.get("type")} of the config has no backbone')
    if source == 'none':
        backbone.init_cfg = None
        return ['--weights none: the backbone starts from random weights.']
    notes = []
    if source == 'auto':
        if isinstance(backbone.get('init_cfg'), dict) and backbone.init_cfg.get('checkpoint'):
            return [f'--weights auto: {backbone.init_cfg.checkpoint}, as the config says.']
        source = name_of_weights(cfg)
        notes.append(f'--weights auto: {source}')
    old = backbone.get('init_cfg')
    allow = isinstance(old, dict) and old.get('allow_partial')
    backbone.init_cfg = dict(type='Pretrained', checkpoint=source,
                             **({'allow_partial': True} if allow else {}))
    return notes


def name_of_weights(cfg):
    """The name of the ImageNet weights of a config's backbone.

    Raises:
        UserError: none were published, or they are not known here.
    """
    backbone = cfg.model.backbone
    kind = MODELS.get(backbone.type)
    if not (isinstance(kind, type) and issubclass(kind, Backbone)):
        ours = sorted({entry['backbone'].split()[0].rstrip(',').split('-')[0]
                       for entry in known().values() if 'backbone' in entry})
        raise UserError(f'--weights auto: knows the weights of {", ".join(ours)}, not of '
                        f'{backbone.type}: name a file, or say --weights none')
    with torch.device('meta'):  # names and shapes tell
        kind = kind_of(MODELS.build(
            dict(backbone, init_cfg=None, _scope_=cfg.get('default_scope'))).state_dict())
    name = weights_for(kind)
    if name is None:
        raise UserError(f'--weights auto: no ImageNet weights were published for {kind}: name a '
                        'file, or say --weights none')
    return name


def fit_to_data(cfg, args):
    """Another backbone, data, length, batch. Returns the lines to log about it."""
    notes = use_backbone(cfg, args.backbone, args.cfg_options) if args.backbone else []
    if not 0 <= args.val_split < 1:
        raise UserError(f'--val-split {args.val_split:g}: a share of the training images, such as '
                        '0.1')
    if args.keep_classes and not cfg.get('load_from'):
        raise UserError('--keep-classes: of which checkpoint? Name one with --cfg-options '
                        'load_from=CHECKPOINT')
    if args.data:
        notes += first_does(cfg, lambda: use_data(cfg, args.data, args.val_split))
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


def about_weights(cfg, chosen=None):
    """The line to log when nothing names weights for the backbone, and --weights isn't given."""
    backbone = cfg.model.get('backbone') or {}
    init = backbone.get('init_cfg') or {}
    if chosen or cfg.get('load_from') or cfg.get('resume') or not backbone or backbone.get(
            'pretrained') or (
            isinstance(init, dict) and init.get('checkpoint')):
        return []
    return ['The backbone starts from random weights: the config names none. To give it some: '
            '--weights auto, or --weights NAME_OR_FILE']
