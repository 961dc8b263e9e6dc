#!/usr/bin/env python3
"""Score a checkpoint: tools/test.py CONFIG CHECKPOINT."""
import in_venv  # noqa: F401

# isort: split
from mmengine.registry import METRICS

from backbones.pretrained import TRUSTED, local_file
from downstream.data.checks import check_data
from downstream.data.own import use_data
from downstream.errors import one_message
from downstream.next_steps import after_test
from downstream.scoring.flags import check_flags, draw_into, use_tta
from downstream.scoring.records import RecordTest
from downstream.scoring.submissions import without_ground_truth
from downstream.training.checkpoints import CheckFits, check_name
from downstream.training.launching import (
    add_checkpoint,
    build_runner,
    fit_launcher,
    load_config,
    make_parser,
    orderly_exit,
    parse,
    use_plain_runner,
)
from downstream.training.live import live_line
from downstream.training.processes import first_does
from downstream.training.tracking import without_trackers


def parse_args(argv):
    parser = make_parser(__doc__, 'for the log and the record of the scores (default: test/ in the '
                         "experiment's work dir, beside the training)")
    add_checkpoint(parser)
    parser.add_argument('--out', metavar='FILE.pkl',
                        help='write the predictions to this file: tools/report.py and '
                             'tools/score.py read it')
    parser.add_argument('--format-only', metavar='DIR',
                        help='write the predictions as COCO\'s and ADE20K\'s servers take them; '
                             'nothing is scored and no ground truth is needed (docs/predict.md)')
    parser.add_argument('--show-dir', metavar='DIR', help='draw the predictions into this folder')
    parser.add_argument('--tta', action='store_true',
                        help="merge the predictions of several sizes and flips of each image (the "
                             "config's tta_model and tta_pipeline)")
    return parse(parser, argv)


@one_message('nothing is scored; run the same command again')
@orderly_exit()
def main(argv=None):
    args = parse_args(argv)
    # Not where the training's config lies, as it ran: the test's would take its place.
    cfg = load_config(args, 'model', 'test_dataloader', below='test')
    notes = first_does(cfg, lambda: use_data(cfg, args.data)) if args.data else []
    check_flags(cfg, args)
    cfg.load_from = args.checkpoint
    if args.trust_checkpoint:
        TRUSTED.add(args.checkpoint)
    cfg.resume = False
    if not args.allow_partial:
        check_name(cfg, args.checkpoint)
    use_plain_runner(cfg)  # FSDP is for training: without gradients one GPU is enough
    without_trackers(cfg)
    notes += use_tta(cfg) if args.tta else []
    if args.format_only:
        without_ground_truth(cfg, args.format_only)
    else:
        check_data(cfg, 'test', checked=bool(args.data))
    local_file(args.checkpoint)  # fetched before anything is built
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
    if not args.format_only:
        runner.register_hook(RecordTest(args.checkpoint, args.tta))
    with live_line(runner):
        runner.test()
    after_test(runner, args)


if __name__ == '__main__':
    main()
