#!/usr/bin/env python3
"""Score a checkpoint: ``python tools/test.py CONFIG CHECKPOINT``."""
import in_venv  # noqa: F401

# isort: split
from pathlib import Path

from mmengine.registry import METRICS

from backbones.pretrained import TRUSTED
from downstream.checkpoints import CheckFits
from downstream.checks import check_data
from downstream.errors import UserError, one_message
from downstream.launch import (
    build_runner,
    fit_launcher,
    leave_processes,
    load_config,
    make_parser,
    make_writable,
    parse,
    use_plain_runner,
)
from downstream.results import RecordTest


def parse_args(argv):
    parser = make_parser(__doc__)
    parser.add_argument('checkpoint', help='checkpoint file')
    parser.add_argument('--out', metavar='FILE.pkl', help='write the predictions to this file')
    parser.add_argument('--show-dir', help='draw the predictions into this folder')
    parser.add_argument('--tta', action='store_true',
                        help="test-time augmentation: the config's tta_model and tta_pipeline")
    return parse(parser, argv)


def check_flags(cfg, args):
    if '://' not in args.checkpoint and not Path(args.checkpoint).is_file():
        raise UserError(f'there is no checkpoint file {args.checkpoint}')
    if args.out and not args.out.endswith(('.pkl', '.pickle')):
        raise UserError(f'--out {args.out}: the file is a pickle, give it a name in .pkl')
    if args.out:  # it is written last: better to know now
        make_writable(Path(args.out).absolute().parent, '--out')
    if args.tta and not (cfg.get('tta_model') and cfg.get('tta_pipeline')):
        raise UserError(f'--tta: {args.config} has no tta_model and tta_pipeline')
    if args.show_dir and 'visualization' not in cfg.get('default_hooks', {}):
        raise UserError(f'--show-dir: {args.config} has no default_hooks.visualization')
    if args.show_dir:
        make_writable(args.show_dir, '--show-dir')


def draw_into(cfg, folder):
    """mmdet's hook writes the pictures itself, mmseg's gives them to the visualizer."""
    folder = str(Path(folder).absolute())  # mmdet puts a relative one below the work dir
    cfg.default_hooks.visualization.draw = True
    if cfg.default_scope == 'mmseg':
        cfg.visualizer.save_dir = folder
        cfg.default_hooks.visualization.interval = 1  # mmseg 1.2.2 would draw one image in 50
    else:
        cfg.default_hooks.visualization.test_out_dir = folder


def use_tta(cfg):
    """Wrap the model for test-time augmentation. Returns the lines to log about it."""
    cfg.model = dict(**cfg.tta_model, module=cfg.model)
    dataset = cfg.test_dataloader.dataset
    while 'dataset' in dataset:
        dataset = dataset.dataset
    dataset.pipeline = cfg.tta_pipeline
    if not cfg.model.module.get('roi_head', {}).get('mask_head'):
        return []
    cfg.model.module.roi_head.mask_head = None
    metrics = cfg.test_evaluator
    for metric in [metrics] if isinstance(metrics, dict) else metrics:
        if 'segm' in metric.get('metric', ''):
            metric.metric = 'bbox'
    return ['--tta: mmdet merges the boxes of the views, not their masks; only boxes are scored.']


@one_message('nothing is scored; run the same command again')
def main(argv=None):
    args = parse_args(argv)
    cfg = load_config(args, 'model', 'test_dataloader')
    check_flags(cfg, args)
    cfg.load_from = args.checkpoint
    if args.trust_checkpoint:
        TRUSTED.add(args.checkpoint)
    cfg.resume = False
    use_plain_runner(cfg)  # FSDP is for training: without gradients one GPU is enough
    check_data(cfg, 'test')
    notes = use_tta(cfg) if args.tta else []
    notes += fit_launcher(cfg)
    if args.show_dir:
        draw_into(cfg, args.show_dir)
    runner = build_runner(cfg)
    for note in notes:
        runner.logger.warning(note)
    if args.out:
        kind = 'DumpSegResults' if cfg.default_scope == 'mmseg' else 'mmdet.DumpDetResults'
        runner.test_evaluator.metrics.append(
            METRICS.build(dict(type=kind, out_file_path=args.out)))
    runner.register_hook(CheckFits(args.checkpoint, allow_partial=args.allow_partial))
    runner.register_hook(RecordTest(args.checkpoint, args.tta))
    runner.test()
    leave_processes()


if __name__ == '__main__':
    main()
