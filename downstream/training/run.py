"""A training from its config to its last checkpoint."""
from argparse import Namespace

from mmengine.dist import get_world_size

from ..data.checks import check_data
from .changes import SameExperiment
from .checkpoints import CheckFits
from .flags import about_weights, apply_flags, fit_to_data
from .launching import build_runner, fit_launcher, fit_precision, fit_strategy
from .live import live_line
from .locking import holding
from .nonfinite import SkipNonFinite
from .resuming import MissedValidation
from .seeds import SameDraws
from .stopping import Stopping
from .tracking import track


def train(cfg, args: Namespace):
    """Train what a config says, as the flags of tools/train.py change it.

    Returns:
        the runner, when the training is over. (Stopped by a signal, the process ends.)

    Raises:
        UserError: something is wrong that a person can put right; docs/reliability.md.
    """
    stopping = Stopping()
    with holding(cfg.work_dir), stopping.listening():
        runner = prepare(cfg, args)
        for hook in (SameDraws(), stopping, MissedValidation(),
                     SkipNonFinite(cfg.get('max_nonfinite', 10))):
            runner.register_hook(hook)
        with live_line(runner):
            runner.train()
    return runner


def prepare(cfg, args: Namespace):
    """The runner, with the config fitted to flags, data and machine, and checkpoints checked."""
    notes = (fit_to_data(cfg, args) + apply_flags(cfg, args) + about_weights(cfg, args.weights)
             + fit_precision(cfg) + fit_launcher(cfg) + fit_strategy(cfg))
    track(cfg, args.log)
    check_data(cfg, 'train', 'val', checked=bool(args.data))
    source = cfg.get('load_from') or f'the latest checkpoint in {cfg.work_dir}'
    same = SameExperiment(cfg, source, args.allow_changes)
    runner = build_runner(cfg)
    runner.cfg.world_size = get_world_size()  # for the checkpoint's record of its recipe
    for note in notes:
        runner.logger.warning(note)
    runner.register_hook(same)
    resume = bool(cfg.get('resume'))
    runner.register_hook(CheckFits(source, whole=resume, resume=resume,
                                   allow_partial=args.allow_partial and not resume,
                                   keep_classes=args.keep_classes))
    return runner
