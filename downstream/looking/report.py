"""A page about one run or several.

Curves, per-class scores, precision and recall, the worst and best images, how the configs differ,
complexity and environment, in one HTML file that needs no network. docs/report.md
"""
import contextlib
import datetime
import json
import math
import os
import re
import shlex
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
from mmengine.config import Config
from mmengine.utils import import_modules_from_strings

from ..data.checks import check_data
from ..errors import UserError
from ..scoring.complexity import complexity as count
from ..scoring.predictions import build_dataset, load_predictions, score
from ..training.checkpoints import load_from_file
from ..training.options import RUNNER_KEYS
from .charts import (
    COLORS,
    confused_pairs,
    confusion_chart,
    curve_charts,
    loss_chart,
    main_score,
    precision_charts,
)
from .pages import data_uri, save_page, template
from .pictures import draw

# -- what a work dir holds ---------------------------------------------------------------------

class Run:
    """One work dir: its config, curves, environment, complexity and, if there, predictions.

    Raises:
        UserError: the folder is no work dir of a training run, or its predictions are not its own.
    """

    def __init__(self, folder: Path):
        if not folder.is_dir():
            raise UserError(f'there is no work dir {folder}')
        self.folder, self.name = folder, folder.resolve().name
        self.rows, self.sessions = read_scalars(folder)
        self.train = [row for row in self.rows if 'loss' in row]
        if not self.train:
            raise UserError(f'{folder} holds no training curves: there is no loss in '
                            f'{folder}/*/vis_data/scalars.json. Give the folder that tools/train.py'
                            ' had as --work-dir')
        self.notes = []
        # Not the copy beside the checkpoints: tools/test.py may have written its own over it.
        self.config_file = self.sessions[-1] / 'vis_data' / 'config.py'
        if not self.config_file.is_file():
            raise UserError(f'there is no {self.config_file}, the config of the run')
        self.cfg = Config.fromfile(self.config_file, import_custom_modules=False)
        try:
            import_modules_from_strings(**self.cfg.get('custom_imports') or {'imports': []})
        except ImportError as error:
            raise UserError(f'{self.config_file}: its custom_imports cannot be imported: {error}'
                            ) from None
        self.logs = [log.read_text(errors='replace') for session in self.sessions
                     for log in session.glob('*.log')]
        self.environment = read_environment(self.logs, self.checkpoint('last_checkpoint'))
        self.read_scores()
        self.complexity, self.scores, self.pictures = {}, None, []

    def checkpoint(self, *patterns) -> Path | None:
        """The newest of the run's checkpoints, or the one that a text file names."""
        for pattern in patterns:
            for path in sorted(self.folder.glob(pattern), key=os.path.getmtime, reverse=True):
                if path.suffix != '.pth':  # written on another machine, it has another path
                    path = self.folder / Path(path.read_text().strip()).name
                if path.is_file():
                    return path
        return None

    def read_scores(self):
        """The scores of each validation, in percent, and the main one's best."""
        self.val = [row for row in self.rows if 'loss' not in row]
        for row in self.val:
            for key in {'data_time', 'time'} & row.keys():
                del row[key]
            for key in row:
                if key.startswith('coco/'):  # a fraction; -1 where there is no such object
                    row[key] = 100 * row[key] if row[key] >= 0 else math.nan
        self.metrics = [key for key in dict.fromkeys(key for row in self.val for key in row)
                        if key not in ('step', 'at', 'when')
                        and any(math.isfinite(row.get(key, math.nan)) for row in self.val)]
        keeps = self.cfg.get('default_hooks', {}).get('checkpoint') or {}
        wanted, rule = (  # of several, the first
            value[0] if isinstance(value, (list, tuple)) and value else value
            for value in (keeps.get('save_best'), keeps.get('rule')))
        self.main = wanted if wanted in self.metrics else main_score(self.metrics)
        scored = [row for row in self.val if math.isfinite(row.get(self.main, math.nan))]
        best = min if self.main == wanted and rule == 'less' else max
        self.best = best(scored, key=lambda row: row[self.main]) if scored else None

    @property
    def length(self) -> str:
        last = self.rows[-1]
        planned = self.cfg.get('train_cfg') or {}
        if 'epoch' in self.train[-1] and 'max_epochs' in planned:
            return f'{self.train[-1]["epoch"]} of {planned.max_epochs} epochs'
        total = planned.get('max_iters')
        return f'{last["at"]:,.0f}' + (f' of {total:,}' if total else '') + ' iterations'

    @property
    def wall_time(self) -> str:
        """From the first to the last line of each log."""
        seconds = 0
        for log in self.logs:
            stamps = [datetime.datetime.strptime(stamp, '%Y/%m/%d %H:%M:%S') for stamp in
                      re.findall(r'^(\d{4}/\d\d/\d\d \d\d:\d\d:\d\d) - ', log, re.MULTILINE)]
            if stamps:
                seconds += (stamps[-1] - stamps[0]).total_seconds()
        hours, minutes = divmod(round(seconds / 60), 60)
        return f'{hours} h {minutes} min' if hours else f'{seconds / 60:.1f} min'

    @property
    def test_command(self) -> str:
        """What writes the predictions that this page lacks."""
        # best_METRIC_epoch_3.pth; the run may have kept the best of other metrics too
        best = f'best_{(self.main or "").replace("/", "_")}_[ei]*.pth'
        checkpoint = self.checkpoint(best, 'best_*.pth', 'last_checkpoint') or 'CHECKPOINT'
        return shlex.join(map(str, [
            'tools/test.py', self.config_file, checkpoint, '--work-dir', self.folder / 'test',
            '--out', self.folder / 'results.pkl']))

    def measure(self):
        """Count the model's parameters, part by part."""
        try:
            self.complexity = complexity(self.cfg)
        except Exception as error:  # another version of the code may not know its config
            self.notes.append(f'The model cannot be built here, so that nothing is known of its '
                              f'complexity: {type(error).__name__}: {error}')

    def evaluate(self, count: int):
        """Score the predictions and draw the worst and the best ``count`` images."""
        files = sorted(self.folder.glob('*.pkl'), key=os.path.getmtime)
        if not files:
            return
        self.predictions_file = files[-1]
        predictions = load_predictions(files[-1])
        try:
            check_data(self.cfg, 'test')
        except UserError as error:
            self.notes.append(f'The test data cannot be read, so that {files[-1].name} is not '
                              f'scored: {error}')
            return
        dataset = build_dataset(self.cfg)
        self.scores = score(self.cfg, dataset, predictions, files[-1])
        if self.scores is None:
            self.notes.append(f'{files[-1].name} is not scored: the test_evaluator is none of '
                              'CocoMetric, IoUMetric and PanopticQuality.')
            return
        values = [value for value, _ in self.scores.images]  # NaN where nothing is labelled
        order = sorted((i for i, value in enumerate(values) if math.isfinite(value)),
                       key=values.__getitem__)
        worst = order[:min(count, (len(order) + 1) // 2)]
        best = order[len(worst):][::-1][:count]
        for title, chosen in ('Worst', worst), ('Best', best):
            self.pictures.append((title, [
                (Path(predictions[i]['img_path']).name, self.scores.images[i][1],
                 *map(data_uri, draw(dataset, i, predictions[i]))) for i in chosen]))


def read_scalars(folder: Path) -> tuple[list[dict], list[Path]]:
    """What mmengine logged in a work dir, as one run, and the folders it comes from.

    A session begun with --resume repeats what came after its checkpoint: the later one counts.
    Rows get 'at', the iteration they came after, and validations 'when', in words.
    """
    rows, sessions = [], []
    for file in sorted(folder.glob('*/vis_data/scalars.json')):
        new = []
        for line in file.read_text().splitlines():
            with contextlib.suppress(ValueError):  # a killed run may leave half a line
                new.append(json.loads(line))
        if any('loss' in row for row in new):
            place(new)
            rows = [row for row in rows if row['at'] < new[0]['at']] + new
            sessions.append(file.parents[1])
    return rows, sessions


def place(rows: list[dict]):
    """Set 'at' and 'when'. A validation's 'step' counts epochs, iterations or, always 0, nothing.
    """
    first = {}  # iteration logged first of each epoch: those lie an epoch apart
    for row in rows:
        if 'loss' in row and 'epoch' in row:
            first.setdefault(row['epoch'], row['step'])
    length = 0
    if len(first) > 1:
        (a, begin), *_, (b, end) = first.items()
        length = (end - begin) / (b - a)
    last = {'step': 0}
    for row in rows:
        if 'loss' in row:
            last, row['at'] = row, row['step']
        elif row['step'] == last.get('epoch'):
            row['at'] = max(row['step'] * length, last['step'])
            row['when'] = f'epoch {row["step"]}'
        else:
            row['at'] = max(row['step'], last['step'])
            row['when'] = f'iteration {row["at"]:,}'


def read_environment(logs: list[str], checkpoint: Path | None) -> dict[str, str]:
    """The environment that the last session logged, and the commit it ran from."""
    found = {}
    for log in logs[-1:]:
        block = re.search(r'System environment:\n(.*?)\n-{20}', log, re.DOTALL)
        found = dict(re.findall(r'^    (\S.*?): (.+)$', block[1] if block else '', re.MULTILINE))
        found.pop('PyTorch compiling details', None)
    if checkpoint:
        with contextlib.suppress(UserError):
            content = load_from_file(checkpoint)
            # mmengine's own version, then the commit of the folder in which the run was started
            commit = re.search(r'[0-9a-f]{40}$', content['meta'].get('mmengine_version', ''))
            if commit:
                found['git commit'] = commit[0]
    return found


def complexity(cfg) -> dict[str, str]:
    """The rows of the page's table of complexity: parameters, part by part, and multiply-adds."""
    cost = count(cfg)
    total = cost['params']
    large = {part: size for part, size in cost['parts'].items() if size >= total / 100}
    rows = {'parameters': f'{total / 1e6:.4g} M'}
    for part, size in {**large, 'the rest': total - sum(large.values())}.items():
        rows[f'\N{EN DASH} {part}'] = f'{size / 1e6:.4g} M'
    height, width = cost['input']
    rows[f'FLOPs of an image of {width} x {height}'] = f'{cost["flops"] / 1e9:.4g} G'
    rows['kept for its backward pass, backbone and neck'] = f'{cost["activations"] / 2**30:.3g} GiB'
    return rows


# -- comparisons -------------------------------------------------------------------------------

def flatten(node, key='') -> dict[str, str]:
    """{'model.backbone.depths': '[2, 2, 6, 2]', ...}; lists are opened where they hold dicts."""
    if isinstance(node, dict) and node:
        entries = node.items()
    elif isinstance(node, (list, tuple)) and holds_dict(node):
        entries = enumerate(node)
    else:
        return {key: repr(list(node) if isinstance(node, tuple) else node)}
    flat = {}
    for name, value in entries:
        flat.update(flatten(value, f'{key}.{name}' if key else str(name)))
    return flat


def holds_dict(node) -> bool:
    return isinstance(node, dict) or (
        isinstance(node, (list, tuple)) and any(map(holds_dict, node)))


def config_differences(configs: list) -> dict[str, list]:
    """{dotted key: its value in each config, None where it has none} of what differs.

    Only of what the runner reads: a config also has the variables it was written with.
    """
    flat = [flatten({key: cfg[key] for key in cfg if key in RUNNER_KEYS - {'work_dir'}})
            for cfg in configs]
    return table(flat, differing=True)


def table(columns: list[dict], differing=False) -> dict[str, list]:
    """{key: its value in each column, None where it has none}, keys in order of appearance."""
    keys = dict.fromkeys(key for column in columns for key in column)
    rows = {key: [column.get(key) for column in columns] for key in keys}
    return {key: row for key, row in rows.items() if not differing or len(set(row)) > 1}


def first(row):
    return next(iter(row.values() if isinstance(row, dict) else row))


def versions_here() -> str:
    found = []
    for name in ('torch', 'mmengine', 'mmcv', 'mmdet', 'mmsegmentation', 'onedl-mmengine',
                 'onedl-mmcv', 'onedl-mmdetection', 'onedl-mmsegmentation'):
        with contextlib.suppress(PackageNotFoundError):
            found.append(f'{name} {version(name)}')
    return ', '.join(found)


# -- the page ----------------------------------------------------------------------------------

def render(runs: list[Run]) -> str:
    page = template(
        'report.html.j2',
        score=lambda value: (f'{value:.1f}' if value is not None and math.isfinite(value) else
                             '\N{EM DASH}'),
        ranked=lambda rows: sorted(
            rows.items(), key=lambda row: -np.nan_to_num(first(row[1]) or 0, nan=-1)))
    scored = [run for run in runs if run.scores]
    columns = [next(iter(first(run.scores.classes))) for run in scored]
    return page.render(
        runs=runs,
        charts=curve_charts(runs),
        terms=[loss_chart(run, run.name) for run in runs] if len(runs) > 1 else [],
        # Where the same is scored: the classes of all runs side by side.
        compared=table([{name: row[column] for name, row in run.scores.classes.items()}
                        for run, column in zip(scored, columns, strict=True)])
        if len(scored) > 1 and len(set(columns)) == 1 else {},
        compared_runs=scored, compared_score=columns[0] if columns else '',
        precision={run.name: precision_charts(run.scores) for run in scored
                   if run.scores.precision},
        confusion={run.name: (confusion_chart(run.scores), confused_pairs(run.scores))
                   for run in scored if run.scores.confusion is not None},
        differences=config_differences([run.cfg for run in runs]) if len(runs) > 1 else {},
        complexity=table([run.complexity for run in runs]),
        environment=table([run.environment for run in runs]), here=versions_here())


def write_page(folders, out: Path, images: int) -> Path:
    """Write the page of some work dirs, showing so many of each one's worst and best images.

    Returns:
        The page, index.html in ``out``.

    Raises:
        UserError: as :class:`Run`; or ``out`` cannot be written.
    """
    runs = [Run(folder) for folder in dict.fromkeys(folders)]
    if len({run.name for run in runs}) < len(runs):
        for run in runs:
            run.name = str(run.folder)
    for number, run in enumerate(runs, 1):
        run.color = COLORS[(number - 1) % len(COLORS)]
        print(f'{number}/{len(runs)} {run.folder}', flush=True)
        run.measure()
        run.evaluate(images)
    return save_page(render(runs), out, '--out')
