"""``--log``: the curves of a run in TensorBoard or Weights & Biases, beside the local files."""
import importlib
import os
from pathlib import Path

from mmengine.registry import VISBACKENDS
from mmengine.visualization import WandbVisBackend

from ..errors import UserError

PROJECT = 'downstream-backbones'  # in Weights & Biases, where WANDB_PROJECT names no other
# What --log takes: mmengine's backend for it, what that imports, and the package to install.
TRACKERS = {'tensorboard': ('TensorboardVisBackend', 'torch.utils.tensorboard', 'tensorboard'),
            'wandb': ('WandbRun', 'wandb', 'wandb')}


@VISBACKENDS.register_module()
class WandbRun(WandbVisBackend):
    """mmengine's, without a copy of all Python files below the current directory.

    Those would be the environment's too: in a checkout, tens of thousands.

    Raises:
        UserError: Weights & Biases cannot be reached, or knows no key.
    """

    def _init_env(self):
        import wandb
        try:
            super()._init_env()
        except wandb.errors.Error as error:
            raise UserError(f'--log wandb: {error}\nWith WANDB_MODE=offline the run stays on this '
                            'machine, and `wandb sync` sends it later'
                            ) from None

    def add_config(self, config, **kwargs):
        self.experiment.config.update(config.to_dict())


def track(cfg, names):
    """Add the trackers that ``--log`` names to those of the config.

    Raises:
        UserError: a package that one of them needs, or one that the config names, is not there.
    """
    if not cfg.get('visualizer'):
        cfg.visualizer = dict(type='Visualizer')
    backends = list(cfg.visualizer.get('vis_backends') or [dict(type='LocalVisBackend')])
    known = [backend.get('type') for backend in backends]
    for name, (kind, module, package) in TRACKERS.items():
        if name in names and kind not in known:
            backends.append(dict(type=kind))
            known.append(kind)
        if kind in known:
            require(name, module, package)
    for backend in backends:
        if backend.get('type') == 'WandbRun':
            backend.setdefault('init_kwargs', dict(
                project=os.environ.get('WANDB_PROJECT', PROJECT),
                name=os.environ.get('WANDB_NAME') or run_name(cfg)))
    cfg.visualizer.vis_backends = backends


def require(name: str, module: str, package: str):
    try:
        found = importlib.import_module(module)
        # A folder of that name, as wandb leaves it where it runs, can be imported as well.
        if getattr(found, '__file__', None) is None:
            raise ImportError(f'{package} is only a folder')
    except ImportError as error:
        raise UserError(f'--log {name} needs a package that is not there ({error}): pip install '
                        f'{package}') from None


def run_name(cfg) -> str:
    """The experiment's, and that of the work dir where it is another."""
    names = Path(cfg.filename).stem, Path(cfg.work_dir).absolute().name
    return ' '.join(dict.fromkeys(names))


def without_trackers(cfg):
    """For tests: mmengine's log of them has no curves, and the packages may not be there."""
    if cfg.get('visualizer') and cfg.visualizer.get('vis_backends'):
        cfg.visualizer.vis_backends = [
            backend for backend in cfg.visualizer.vis_backends
            if backend.get('type') not in [kind for kind, *_ in TRACKERS.values()]]
