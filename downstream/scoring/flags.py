"""What the flags of tools/test.py set in a config."""
from pathlib import Path

from ..data.parts import leaves, metrics_of
from ..errors import UserError
from ..training.launching import make_writable


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
    if args.format_only:
        make_writable(args.format_only, '--format-only')
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
    for dataset in leaves(cfg.test_dataloader.dataset):
        dataset.pipeline = cfg.tta_pipeline
    if (not cfg.model.module.get('roi_head', {}).get('mask_head')
            or cfg.tta_model.type.rpartition('.')[2] != 'DetTTAModel'):
        return []
    cfg.model.module.roi_head.mask_head = None
    for metric in metrics_of(cfg, 'test'):
        if 'segm' in metric.get('metric', ''):
            metric.metric = 'bbox'
    return ["--tta: mmdet's DetTTAModel merges the boxes of the views, not their masks: boxes only."
            " MaskTTAModel (--cfg-options tta_model.type=MaskTTAModel) merges masks too."]
