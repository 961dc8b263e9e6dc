#!/usr/bin/env python3
"""Train a detector or a segmentor: ``python tools/train.py CONFIG``."""
import in_venv  # noqa: F401

# isort: split
from pathlib import Path

from mmengine.dist import get_world_size
from mmengine.registry import MODELS, OPTIMIZERS
from mmengine.runner import find_latest_checkpoint

from backbones.base import Backbone
from backbones.pretrained import TRUSTED
from downstream.checkpoints import CheckFits
from downstream.checks import check_data
from downstream.draws import SameDraws
from downstream.errors import UserError, one_message
from downstream.launch import (
    build_runner,
    fit_launcher,
    fit_precision,
    fit_strategy,
    has_accelerator,
    leave_processes,
    load_config,
    make_parser,
    parse,
)


def parse_args(argv):
    parser = make_parser(__doc__)
    parser.add_argument('--amp', action='store_true', help='train in mixed precision')
    parser.add_argument('--resume', nargs='?', const='auto', metavar='CHECKPOINT',
                        help='go on from this checkpoint, or from the latest in the work dir')
    parser.add_argument('--auto-scale-lr', action='store_true',
                        help="scale the learning rate with the batch size over the config's "
                             'auto_scale_lr.base_batch_size')
    return parse(parser, argv)


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


def about_weights(cfg):
    """The line to log when nothing names weights for the backbone."""
    backbone = cfg.model.get('backbone') or {}
    init = backbone.get('init_cfg') or {}
    if cfg.get('load_from') or cfg.get('resume') or not backbone or (
            isinstance(init, dict) and init.get('checkpoint')):
        return []
    return ['The backbone starts from random weights: the config names none. To give it some: '
            '--cfg-options model.backbone.init_cfg.type=Pretrained '
            'model.backbone.init_cfg.checkpoint=FILE']


@one_message('the same command with --resume goes on from the last checkpoint')
def main(argv=None):
    args = parse_args(argv)
    cfg = load_config(args, 'model', 'train_dataloader', 'optim_wrapper', 'train_cfg')
    notes = (apply_flags(cfg, args) + about_weights(cfg) + fit_precision(cfg) + fit_launcher(cfg)
             + fit_strategy(cfg))
    check_data(cfg, 'train', 'val')
    runner = build_runner(cfg)
    runner.cfg.world_size = get_world_size()  # for the checkpoint's record of its recipe
    for note in notes:
        runner.logger.warning(note)
    source = cfg.get('load_from') or f'the latest checkpoint in {cfg.work_dir}'
    resume = bool(cfg.get('resume'))
    runner.register_hook(CheckFits(source, whole=resume, resume=resume,
                                   allow_partial=args.allow_partial and not resume))
    runner.register_hook(SameDraws())
    runner.train()
    leave_processes()


if __name__ == '__main__':
    main()
