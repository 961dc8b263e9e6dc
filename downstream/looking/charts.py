"""The charts of a page: each has a title, an <svg> element and a legend.

A run is one of report.py: with its rows of the log, its scores and its color.
"""
import io
import math
import re
import textwrap
from collections import Counter

import matplotlib
import numpy as np
from markupsafe import Markup

matplotlib.use('Agg')
import matplotlib.pyplot as plt
from matplotlib.colors import to_hex
from matplotlib.ticker import LogFormatter, LogLocator, MaxNLocator

COLORS = '#0072b2', '#d55e00', '#009e73', '#cc79a7', '#b8860b', '#56b4e9', '#8c6bb1', '#7f7f7f'
INK = '#010203'  # stands for the page's own colour of text, light or dark
STYLE = {
    'svg.fonttype': 'none', 'font.size': 11, 'figure.constrained_layout.use': True,
    'text.parse_math': False,  # a class may be called $x$
    'axes.spines.top': False, 'axes.spines.right': False, 'axes.grid': True, 'grid.alpha': 0.25,
    'axes.prop_cycle': matplotlib.cycler(color=COLORS), **dict.fromkeys(
        ['text.color', 'axes.labelcolor', 'axes.edgecolor', 'xtick.color', 'ytick.color',
         'grid.color'], INK)}
MANY = 8  # classes or lines that one chart can hold
MAIN_SCORES = 'bbox_mAP', 'segm_mAP', 'mIoU', 'PQ'  # those that papers compare models by


def as_svg(figure, title: str) -> Markup:
    """A figure as an <svg> element that takes the page's colour of text."""
    buffer = io.StringIO()
    figure.savefig(buffer, format='svg', transparent=True,
                   metadata=dict.fromkeys(('Date', 'Creator', 'Format', 'Type')))
    plt.close(figure)
    text = buffer.getvalue()
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', '', text[text.index('<svg'):])  # HTML needs none
    text = text.replace('xlink:href', 'href').replace(INK, 'currentColor')
    return Markup(text.replace('<svg', f'<svg role="img" aria-label="{Markup.escape(title)}"', 1))


def line_chart(title: str, lines: dict, xlabel='iteration', ylabel='', colors=None, **axes):
    """Title, drawing and legend of {label: (x, y)}; the page sets the legend, names may be long."""
    with matplotlib.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(5, 2.9))
        for label, (x, y) in lines.items():
            axis.plot(x, y, label=label, marker='o' if len(x) < 13 else '', markersize=4,
                      color=colors and colors[label])
        axis.set(xlabel=xlabel, ylabel=ylabel, **axes)
        if axis.get_yscale() == 'log':
            axis.yaxis.set_major_formatter('{x:g}')
            axis.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1.5, 0.6)))
        legend = [(line.get_label(), line.get_color()) for line in axis.lines]
        return title, as_svg(figure, title), (
            legend if max(len(lines), len(colors or ())) > 1 else [])


def bar_chart(title: str, names: list[str], values: dict[str, list[float]], xlabel=''):
    """A row for each name, with a bar for each of {label: a value for each name}."""
    with matplotlib.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(5, 1 + 0.26 * len(names)))
        height = 0.8 / len(values)
        for number, (label, row) in enumerate(values.items()):
            axis.barh([i + height * number for i in range(len(names))], row, height, label=label,
                      align='edge')
        # A name is no formula, whatever signs it has.
        axis.set_yticks([i + 0.4 for i in range(len(names))],
                        [textwrap.shorten(name, 28, placeholder='…') for name in names],
                        parse_math=False)
        axis.set(xlabel=xlabel, xlim=(0, None), ylim=(-0.3, len(names) + 0.1))
        axis.grid(axis='y', visible=False)
        axis.invert_yaxis()
        axis.xaxis.set_major_locator(MaxNLocator(5))
        axis.xaxis.set_major_formatter('{x:,g}')
        return title, as_svg(figure, title), [
            (label, to_hex(bars[0].get_facecolor())) for label, bars in
            zip(values, axis.containers, strict=True)] if len(values) > 1 else []


def histogram(title: str, values: dict[str, list[float]], xlabel='', marks: dict | None = None):
    """Percent of {label: numbers above 0}, over a logarithmic axis.

    Args:
        marks: {name: the number at which what it names begins}.
    """
    with matplotlib.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(5, 2.9))
        every = np.concatenate([np.asarray(row, float) for row in values.values()])
        low, high = every.min(), every.max()
        edges = np.geomspace(low / 1.05, high * 1.05, 41)
        colors = {}
        for label, row in values.items():
            weights = np.full(len(row), 100 / max(len(row), 1))
            _, _, (drawn, *_) = axis.hist(row, edges, weights=weights, alpha=0.35,
                                          histtype='stepfilled', label=label)
            colors[label] = drawn.get_facecolor()[:3]
            axis.hist(row, edges, weights=weights, histtype='step', color=colors[label])
        axis.set(xlabel=xlabel, ylabel='%', xscale='log', xlim=(edges[0], edges[-1]))
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_major_formatter('{x:,g}')
        axis.xaxis.set_minor_formatter('')
        axis.margins(y=0.15)
        starts = [*(marks or {}).values(), edges[-1]]
        for name, begin, end in zip(marks or (), starts, starts[1:], strict=False):
            begin, end = max(begin, edges[0]), min(end, edges[-1])
            if begin < end:
                axis.axvline(begin, linestyle=':', color=INK)
                axis.text((begin * end)**0.5, 0.98, name, ha='center', va='top',
                          transform=axis.get_xaxis_transform())
        return title, as_svg(figure, title), [
            (label, to_hex(color)) for label, color in colors.items()] if len(values) > 1 else []


def curve(rows: list[dict], key: str):
    rows = [row for row in rows if math.isfinite(row.get(key, math.nan))]
    return [row['at'] for row in rows], [row[key] for row in rows]


def loss_chart(run, title: str):
    """The loss and its terms, those of a head's layers or stages (d0., s0., ...) summed."""
    rows = []
    for row in run.train:
        terms = Counter()
        for key, value in row.items():
            if 'loss' in key:
                terms[re.sub(r'(^|\.)[ds]\d+\.', r'\1', key)] += value
        rows.append({'at': row['at'], **terms})
    keys = sorted({key for row in rows for key in row} - {'at'},
                  key=lambda key: -rows[0].get(key, 0))[:MANY]
    return line_chart(title, {key: curve(rows, key) for key in keys}, yscale='log')


def metric_group(key: str) -> str:
    """Scores of one chart: COCO's of boxes; PQ with its _th and _st; mIoU, mAcc and aAcc."""
    return re.sub(r'_(mAP|th$|st$).*', '', key) if '/' in key else ''


def main_score(keys) -> str | None:
    """The one of several scores that stands for all: what papers compare, else the first."""
    return next((key for name in MAIN_SCORES for key in keys if key.split('/')[-1] == name),
                next(iter(keys), None))


def curve_charts(runs: list) -> list:
    """One run: its loss terms and all scores. Several: the loss and the main scores of each."""
    colors = {run.name: run.color for run in runs}
    if len(runs) == 1:
        run, = runs
        charts = [loss_chart(run, 'Training loss and its terms (log scale)')]
        groups = {}
        for key in run.metrics:
            groups.setdefault(metric_group(key), []).append(key)
        for group, keys in groups.items():
            charts.append(line_chart(
                f'Validation: {group or ", ".join(keys)}',
                {key.split('/')[-1]: curve(run.val, key) for key in keys[:MANY]}, ylabel='%'))
    else:
        charts = [line_chart('Training loss (log scale)', {
            run.name: curve(run.train, 'loss') for run in runs}, yscale='log', colors=colors)]
        groups = {}
        for run in runs:
            for key in run.metrics:
                groups.setdefault(metric_group(key), []).append(key)
        for keys in groups.values():
            key = next((run.main for run in runs if run.main in keys), main_score(keys))
            charts.append(line_chart(f'Validation: {key}', {
                run.name: curve(run.val, key) for run in runs if key in run.metrics},
                ylabel='%', colors=colors))
    charts.append(line_chart('Learning rate', {
        run.name: curve(run.train, 'lr') for run in runs}, colors=colors))
    return charts


def precision_charts(scores) -> list:
    """Precision over recall: the mean of all classes at three IoUs, and some classes at 0.5."""
    charts, recall = [], np.linspace(0, 1, 101)
    frame = dict(xlabel='recall', ylabel='precision', xlim=(0, 1.01), ylim=(0, 1.02))
    for word, precision in scores.precision.items():
        names = [name for name, row in scores.classes.items()
                 if math.isfinite(row[f'{word} AP50'])]
        mean = np.nanmean(precision, 2)
        charts.append(line_chart(
            f'Precision and recall, {word}, mean of all classes',
            {f'IoU {iou}': (recall, mean[i]) for iou, i in (('0.50', 0), ('0.75', 5), ('0.90', 8))},
            **frame))
        names.sort(key=lambda name: -scores.classes[name][f'{word} AP50'])
        title = f'Precision and recall, {word}, at IoU 0.50'
        if len(names) > MANY:
            names = names[:MANY // 2] + names[-MANY // 2:]
            title += f', the {MANY // 2} best and worst classes'
        index = {name: i for i, name in enumerate(scores.classes)}
        charts.append(line_chart(
            title, {name: (recall, precision[0, :, index[name]]) for name in names}, **frame))
    return charts


def confusion_chart(scores) -> list:
    """Where the pixels of each class go: all classes, or the most confused ones."""
    share = shares(scores.confusion)
    wrong = share - np.diag(share.diagonal())
    chosen = np.argsort(-(wrong.max(0) + wrong.max(1)), kind='stable')[:2 * MANY]
    chosen = np.sort(chosen)
    names = np.array(list(scores.classes))[chosen]
    with matplotlib.rc_context({**STYLE, 'axes.grid': False}):
        figure, axis = plt.subplots(figsize=(5, 4.6))
        axis.pcolormesh(share[np.ix_(chosen, chosen)], cmap='Blues', vmin=0, vmax=100)
        for (i, j), value in np.ndenumerate(share[np.ix_(chosen, chosen)]):
            if value >= 0.5:
                axis.text(j + .5, i + .5, f'{value:.0f}', ha='center', va='center',
                          size=10 if len(names) <= MANY else 7,
                          color='white' if value > 50 else 'black')
        ticks = np.arange(len(names)) + .5
        axis.set_xticks(ticks, names, rotation=45, ha='right')
        axis.set_yticks(ticks, names)
        axis.set(xlabel='predicted', ylabel='truth')
        axis.invert_yaxis()
        title = "Confusion: % of each true class's pixels" + (
            f', the {len(names)} most confused classes' if len(names) < len(share) else '')
        return [(title, as_svg(figure, title), [])]


def shares(confusion):
    """Percent of each row."""
    return 100 * confusion / np.maximum(confusion.sum(1, keepdims=True), 1)


def confused_pairs(scores, count=10) -> list:
    """(true class, predicted class, percent of the true one's pixels), the largest first."""
    share, names = shares(scores.confusion), list(scores.classes)
    pairs = [(value, i, j) for (i, j), value in np.ndenumerate(share) if i != j and value > 0]
    return [(names[i], names[j], value) for value, i, j in sorted(pairs, reverse=True)[:count]]
