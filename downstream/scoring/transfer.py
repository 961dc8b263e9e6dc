"""Backbones compared: each in the same heads, on the same recipe, data and budget, some seeds each.

Every run goes through tools/train.py and tools/test.py in a work dir of its own, and leaves a
record there: what is finished is read, what was stopped goes on.
"""
import copy
import json
import math
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from mmengine.config import Config

from ..data.generated import make_demo_data
from ..data.subset import write_subset
from ..errors import UserError, user_message
from ..experiments import CONFIGS, ROOT
from ..progress import Progress
from ..saving import write_whole
from ..training.backbones import use_backbone
from ..training.flags import use_weights
from ..training.launching import read_config
from .complexity import complexity

MAIN_SCORES = 'bbox_mAP', 'segm_mAP', 'mIoU', 'PQ'  # those of a table


@dataclass(frozen=True)
class Recipe:
    """What a head is trained by: an experiment of configs/, whose backbone another one replaces.

    Args:
        config: its name.
        epochs: its length, where that is another than the experiment's.
        bar: the main score, in percent, that shows that a small version learns. (An untrained one
            scores next to 0 or, in mIoU, at most 14: one of seven classes everywhere.)
    """
    config: str
    epochs: int | None = None
    bar: float | None = None


RECIPES = {
    # Generated images, minutes each. DETR alone memorises eight images and is scored on those.
    'small': {
        'maskrcnn': Recipe('demo/maskrcnn_focalnet', 3, 30.),
        'retinanet': Recipe('demo/retinanet_focalnet', 3, 30.),
        'detr': Recipe('demo/memorise_detr_focalnet', None, 50.),
        'upernet': Recipe('demo/upernet_focalnet', 8, 70.),
        'cascade': Recipe('demo/cascade_maskrcnn_focalnet', 3, 30.),
        'atss': Recipe('demo/atss_focalnet', 3, 30.),
        'sparsercnn': Recipe('demo/sparsercnn_focalnet', 12, 30.),
        'dino': Recipe('demo/dino_focalnet', 6, 30.),
        'mask2former_semantic': Recipe('demo/mask2former_semantic_focalnet', 6, 70.),
        'mask2former_panoptic': Recipe('demo/mask2former_panoptic_focalnet', 6, 40.),
        'linear': Recipe('demo/linear_focalnet', 6),
    },
    # COCO and ADE20K, the published recipes.
    '1x': {
        'maskrcnn': Recipe('maskrcnn_focalnet_t_1x'),
        'retinanet': Recipe('retinanet_focalnet_t_1x'),
        'detr': Recipe('detr_focalnet_t_50e'),
        'upernet': Recipe('upernet_focalnet_t_160k'),
        'linear': Recipe('linear_focalnet_t_ade20k_40k'),
    },
}
DEFAULT_HEADS = 'maskrcnn', 'retinanet', 'detr', 'upernet'
FROZEN_HEADS = 'linear', 'retinanet'  # those that --frozen leaves, and 'linear' is for it alone
THREE_MAPS = 'retinanet', 'atss', 'dino'  # of strides 8 to 32


def heads(budget: str, frozen: bool) -> list[str]:
    """Those that there are."""
    return [head for head in RECIPES[budget] if (head in FROZEN_HEADS if frozen else
                                                 head != 'linear')]


def demo_families() -> dict:
    return Config.fromfile(CONFIGS / '_base_' / 'demo_backbones.py').families


@dataclass(frozen=True)
class Settings:
    """What all runs of a table have in common.

    Args:
        out: the table's folder.
        budget: one of RECIPES.
        weights: what backbones start from: 'own' published ImageNet weights, or 'none'.
        data: what tools/train.py takes as --data; None: the recipe's.
        gpus: processes of one training, one a GPU.
        frozen: whether backbones are not trained.
    """
    out: Path
    budget: str = 'small'
    weights: str = 'none'
    data: str | None = None
    gpus: int = 1
    frozen: bool = False


@dataclass
class Trial:
    """One run: a backbone in a head with a seed. ``error`` says why it has no ``result``."""
    backbone: str
    head: str
    seed: int
    settings: Settings
    cfg: Config | None = None
    text: str = ''
    result: dict | None = None
    error: str = ''
    cost: dict = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return (self.settings.out / self.head / re.sub(r'[^\w.-]+', '-', self.backbone)
                / f'seed{self.seed}')

    @property
    def recipe(self) -> Recipe:
        return RECIPES[self.settings.budget][self.head]

    @property
    def recipe_file(self) -> Path:
        # Not where the runner leaves its own copy, with the data in it.
        return self.folder / 'recipe' / 'config.py'

    def prepare(self):
        """Compose the config, and read the record if there is one of this very config."""
        try:
            self.cfg = compose(self)
            self.text = f'# data: {self.settings.data}\n{self.cfg.pretty_text}'
            if self.recipe_file.is_file() and self.recipe_file.read_text() != self.text:
                raise UserError(f'{self.folder} holds a run of another config or other data, whose '
                                'score is not comparable: remove it, or give another --out')
            found = self.folder / 'result.json'
            if found.is_file():
                self.result = json.loads(found.read_text())
        except Exception as error:  # whatever a backbone raises is about this run alone
            self.error = in_words(error)

    def perform(self, threads: int | None = None):
        """Train, test and write the record; what goes wrong is noted in ``error``."""
        self.recipe_file.parent.mkdir(parents=True, exist_ok=True)
        self.recipe_file.write_text(self.text)
        data = ['--data', self.settings.data] if self.settings.data else []
        env = {**os.environ, **({'OMP_NUM_THREADS': str(threads)} if threads else {})}
        try:
            train = ([sys.executable, ROOT / 'tools' / 'train.py', self.recipe_file]
                     if self.settings.gpus == 1 else
                     [ROOT / 'tools' / 'dist_train.sh', self.recipe_file, self.settings.gpus])
            self.call([*train, '--work-dir', self.folder, '--resume',
                       *steps(self.cfg, self.settings.gpus), *data],
                      {**env, 'PYTHON': sys.executable})
            self.call([sys.executable, ROOT / 'tools' / 'test.py', self.folder / 'config.py',
                       self.checkpoint(), '--work-dir', self.folder / 'test',
                       '--out', self.folder / 'results.pkl'], env)
            self.result = self.measure()
            write_whole(self.folder / 'result.json', json.dumps(self.result, indent=1) + '\n')
        except Exception as error:  # the other runs go on
            self.error = in_words(error)

    def call(self, command: list, env: dict):
        """Run a tool. Its words go to a file.

        Raises:
            UserError: it failed; with its last words.
        """
        log = self.folder / 'output.txt'
        with log.open('a') as file:
            begin = file.tell()  # after what earlier attempts said
            done = subprocess.run(list(map(str, command)), env=env, stdout=file,
                                  stderr=subprocess.STDOUT)
        if done.returncode:
            lines = log.read_bytes()[begin:].decode(errors='replace').splitlines()
            said = [line for line in lines if line.startswith('error: ')][-1:] or lines[-3:]
            tool = next(part.name for part in command
                        if isinstance(part, Path) and part.parent.name == 'tools')
            raise UserError(f'{tool} ended with status {done.returncode} ({log}): '
                            + ' '.join(said))

    def checkpoint(self) -> Path:
        """The last one. (Moved from another machine, last_checkpoint has another path.)"""
        return self.folder / Path((self.folder / 'last_checkpoint').read_text().strip()).name

    def measure(self) -> dict:
        """What the logs hold: scores in percent, losses, images a second, GiB."""
        records = sorted(self.folder.glob('test/*/test_record.json'), key=os.path.getmtime)
        if not records:
            raise UserError(f'tools/test.py left no record of its scores in {self.folder}/test')
        metrics = json.loads(records[-1].read_text())['metrics']
        scores = {key: (100 * value if value >= 0 else math.nan) if key.startswith('coco/')
                  else value for key, value in metrics.items()
                  if key.split('/')[-1] in MAIN_SCORES}
        if not scores:
            raise UserError(f'{records[-1]} has none of the scores {", ".join(MAIN_SCORES)}')
        rows = [row for file in sorted(self.folder.glob('*/vis_data/scalars.json'))
                for row in read(file) if 'loss' in row]
        images = self.cfg.train_dataloader.batch_size * self.settings.gpus
        memory = [row['memory'] for row in rows if 'memory' in row]  # MiB; logged on GPUs
        return dict(scores=scores, cost=self.cost,
                    first_loss=rows[0]['loss'], last_loss=rows[-1]['loss'],
                    images_a_second=images / statistics.median(row['time'] for row in rows),
                    memory=max(memory) / 2**10 if memory else None)

    @property
    def score(self) -> float:
        """The main one, in percent."""
        return next(iter(self.result['scores'].values()))


# -- configs -----------------------------------------------------------------------------------

def compose(trial: Trial) -> Config:
    """A head's recipe with the trial's backbone, weights and seed in it.

    Raises:
        UserError: there is no such backbone, it does not fit the head, or has no weights.
    """
    settings, recipe = trial.settings, trial.recipe
    os.environ['DEMO_ROOT'] = str(
        demo_data(settings.out, few=trial.head == 'detr').resolve())
    cfg = read_config(CONFIGS / f'{recipe.config}.py', {}, 'model', 'train_dataloader')
    kind, _, family = trial.backbone.partition(':')
    if kind == 'demo':
        if family not in (families := demo_families()):
            raise UserError(f'{trial.backbone}: there is no small version of that name, only of '
                            + ', '.join(families))
        put_small(cfg, trial.head, families[family])
    else:
        use_backbone(cfg, trial.backbone)
    if trial.head == 'linear' and (pyramid := cfg.model.pop('neck', None)):
        cfg.model.decode_head.in_channels = pyramid.in_channels  # the map as it is, of any stride
    if settings.frozen and trial.head == 'retinanet':
        cfg.model.type = 'FrozenRetinaNet'
    set_weights(cfg, settings.weights)
    if recipe.epochs:
        cfg.train_cfg.update(max_epochs=recipe.epochs, val_interval=recipe.epochs)
        for scheduler in cfg.param_scheduler:
            if scheduler.get('by_epoch'):
                scheduler.update(end=recipe.epochs, T_max=recipe.epochs)
    if settings.budget == 'small':
        cfg.default_hooks.logger.interval = 10
        cfg.default_hooks.checkpoint = dict(
            type='CheckpointHook', max_keep_ckpts=1,
            interval=1 if recipe.epochs else cfg.train_cfg.val_interval)
    cfg.randomness = dict(seed=trial.seed)
    return cfg


def put_small(cfg: Config, head: str, family: dict):
    """Put a family's small version into a head's small version."""
    backbone, channels = dict(family['backbone']), list(family['channels'])
    pyramid = family.get('pyramid')
    if head in THREE_MAPS:
        if pyramid:  # one more: strides 8 to 64
            pyramid = {**pyramid, 'rescales': [2, 1, 0.5, 0.25]}
        else:
            backbone['out_indices'], channels = (1, 2, 3), channels[1:]
    elif head == 'detr':  # one map of stride 16
        backbone['out_indices'] = (backbone['depth'] - 1, ) if pyramid else (2, )
        channels, pyramid = [channels[2]], None
    elif head == 'linear':  # the last map
        backbone['out_indices'] = (backbone['depth'] - 1, ) if pyramid else (3, )
        channels, pyramid = channels[3], None
    cfg.model.backbone = backbone
    part = next(cfg.model[key] for key in ('neck', 'decode_head', 'panoptic_head')
                if key in cfg.model)
    part.in_channels = channels
    if 'auxiliary_head' in cfg.model:
        cfg.model.auxiliary_head.in_channels = channels[2]
    if pyramid:
        cfg.model.neck = [pyramid, cfg.model.neck] if 'neck' in cfg.model else pyramid


def set_weights(cfg: Config, wanted: str):
    """Let the backbone start from its published weights ('own') or random ones ('none').

    Raises:
        UserError: none were published for it, or they are not known here.
    """
    backbone = cfg.model.backbone
    init = backbone.get('init_cfg') or {}
    if wanted == 'none':
        backbone.init_cfg = None
        if 'pretrained' in backbone:
            backbone.pretrained = None
    elif not (backbone.get('pretrained') or init.get('checkpoint')):
        use_weights(cfg, 'auto')


def steps(cfg: Config, gpus: int) -> list[str]:
    """The flags that make a step one of the recipe's images, on so many GPUs.

    Raises:
        UserError: so many GPUs cannot make that up.
    """
    base, once = cfg.auto_scale_lr.base_batch_size, cfg.train_dataloader.batch_size * gpus
    if base % once:
        raise UserError(f'{gpus} GPUs take {once} images an iteration, which do not make up the '
                        f"recipe's {base} a step")
    return ['--accumulate', str(base // once)] if base > once else []


def demo_data(folder: Path, few=False) -> Path:
    """Where the generated images are, and the eight that DETR memorises."""
    return folder / ('few' if few else 'data')


def make_data(folder: Path):
    """Generate what small budgets train on, if it is not there."""
    make_demo_data(demo_data(folder))
    few = demo_data(folder, few=True)
    if not few.exists():
        write_subset(demo_data(folder) / 'coco', few / 'coco', images=8, min_area=0)


def in_words(error: Exception) -> str:
    return user_message(error) or f'{type(error).__name__}: {error}'


# -- runs --------------------------------------------------------------------------------------

def plan(backbones: Iterable[str], heads: Iterable[str], seeds: int,
         settings: Settings) -> list[Trial]:
    """All runs, those that have a record with their result; costs are counted once a model."""
    trials = []
    for head in heads:
        for backbone in backbones:
            cost = None
            for seed in range(seeds):
                trials.append(trial := Trial(backbone, head, seed, settings))
                trial.prepare()
                if trial.cfg is not None:
                    cost = (trial.result or {}).get('cost') or cost
                    cost = trial.cost = cost_of(trial.cfg) if cost is None else cost
    return trials


def cost_of(cfg: Config) -> dict:
    """Parameters and multiply-adds at the papers' sizes; {} where they cannot be counted."""
    try:
        cost = complexity(copy.deepcopy(cfg))
        return dict(params=cost['params'], flops=cost['flops'], input=list(cost['input']))
    except Exception:  # a network that the counter cannot run is no reason not to train it
        return {}


def run_all(trials: list[Trial], jobs: int = 1):
    """Perform the runs that have neither result nor error, ``jobs`` at a time."""
    left = [trial for trial in trials if not (trial.result or trial.error)]
    threads = max(1, os.cpu_count() // jobs) if jobs > 1 else None

    def run(trial):
        begin = time.monotonic()
        trial.perform(threads)
        minutes = (time.monotonic() - begin) / 60
        line.write(f'{trial.head} {trial.backbone} seed {trial.seed}: '
                   + (trial.error or ', '.join(f'{key} {value:.1f}' for key, value in
                                               trial.result['scores'].items()))
                   + f' ({minutes:.1f} min)')
        line.update()

    with Progress(total=len(trials), initial=len(trials) - len(left), desc='runs',
                  unit='runs') as line, ThreadPoolExecutor(jobs) as pool:
        list(pool.map(run, left))


def read(scalars: Path) -> list[dict]:
    """The rows of a log; a run that was killed may have left half a line."""
    rows = []
    for line in scalars.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def missed(trials: list[Trial]) -> list[str]:
    """In words, which runs do not reach the score that shows that they learn."""
    return [f'{trial.head} {trial.backbone} seed {trial.seed}: {trial.score:.1f} of '
            f'{trial.recipe.bar:g}' for trial in trials
            if trial.result and trial.recipe.bar is not None and not trial.settings.frozen
            and not trial.score >= trial.recipe.bar]
