#!/usr/bin/env python3
"""Train a detector or a segmentor: tools/train.py CONFIG."""
import in_venv  # noqa: F401

# isort: split
from downstream.errors import one_message
from downstream.next_steps import after_training
from downstream.training.launching import load_config, make_parser, orderly_exit, parse
from downstream.training.run import train
from downstream.training.tracking import TRACKERS


def parse_args(argv):
    parser = make_parser(__doc__, 'for logs and checkpoints (default: work_dirs/<config name>)')
    parser.add_argument('--backbone', metavar='NAME',
                        help="in place of the experiment's: timm:NAME, hf:NAME, or one of the "
                             'project, such as focalnet_t (docs/backbone.md)')
    parser.add_argument('--amp', action='store_true', help='train in mixed precision (GPUs only)')
    parser.add_argument('--resume', nargs='?', const='auto', metavar='CHECKPOINT',
                        help='go on with a run that was stopped: from this checkpoint, or '
                             'from the latest in the work dir')
    parser.add_argument('--allow-changes', action='store_true',
                        help='with --resume: go on although what is trained, on what or how is '
                             'set otherwise now (docs/weights.md)')
    parser.add_argument('--weights', metavar='NAME',
                        help="what the backbone starts from: auto (its own ImageNet weights), the "
                             'name of published ones, a file or URL, or none (docs/weights.md)')
    parser.add_argument('--val-split', type=float, default=0., metavar='SHARE',
                        help='with --data that has no val: score on this share of the training '
                             'images')
    parser.add_argument('--epochs', type=int, metavar='N',
                        help='train so many epochs; warm-up and steps of the learning rate in '
                             'proportion')
    parser.add_argument('--iters', type=int, metavar='N',
                        help='the same for experiments that count iterations')
    parser.add_argument('--batch', type=int, metavar='N',
                        help='images an iteration and GPU; the learning rate follows, and the '
                             'length of experiments that count iterations')
    parser.add_argument('--accumulate', type=int, metavar='N',
                        help='sum up the gradients of N iterations before each step; the '
                             'learning rate follows')
    parser.add_argument('--keep-classes', action='store_true',
                        help='when fine-tuning (--cfg-options load_from=CHECKPOINT) on other '
                             'classes: keep what was learned of those of the same name')
    parser.add_argument('--deterministic', action='store_true',
                        help='the same numbers each time, slower on GPUs (docs/weights.md)')
    parser.add_argument('--auto-scale-lr', action='store_true',
                        help="scale the learning rate with the batch size over the config's "
                             'auto_scale_lr.base_batch_size')
    parser.add_argument('--log', nargs='+', action='extend', choices=TRACKERS, default=[],
                        metavar='WHERE',
                        help=f'send curves to {" or ".join(TRACKERS)} too (docs/watching.md)')
    return parse(parser, argv)


@one_message('the same command with --resume goes on from the last checkpoint')
@orderly_exit()
def main(argv=None):
    args = parse_args(argv)
    cfg = load_config(args, 'model', 'train_dataloader', 'optim_wrapper', 'train_cfg')
    after_training(train(cfg, args))


if __name__ == '__main__':
    main()
