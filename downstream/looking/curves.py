"""Curves of the demo and of the proof of learning; those of any run are in report.py."""
import os
from pathlib import Path

import matplotlib

from ..scoring import learning

matplotlib.use('Agg')
import matplotlib.pyplot as plt  # noqa: E402


def demo_curves(out: Path, experiments: dict):
    """Training losses and validation scores of the demo's models.

    Args:
        out: the demo's folder, with a work dir a model; gets curves.png.
        experiments: {name of the work dir: {score: what it has to reach}}.
    """
    figure, axes = plt.subplots(2, len(experiments), figsize=(10, 6), sharex='col')
    for column, (name, targets) in zip(axes.T, experiments.items(), strict=True):
        log = max((out / name).glob('*/vis_data/scalars.json'), key=os.path.getmtime)
        rows = learning.read(log)
        train = [row for row in rows if 'loss' in row]
        iterations = [row['iter'] for row in train]
        for key in sorted({key for row in train for key in row if 'loss' in key}):
            column[0].plot(iterations, [row.get(key) for row in train], label=key,
                           linewidth=2 if key == 'loss' else 1)
        column[0].set(title=name, ylabel='training loss', ylim=(0, None))
        column[0].legend(fontsize=7)
        # A validation row counts epochs ('step'): place it at the iteration it came after.
        per_epoch = iterations[-1] / train[-1]['epoch']
        for target, least in targets.items():
            scored = [row for row in rows if target in row]
            line, = column[1].plot([row['step'] * per_epoch for row in scored],
                                   [row[target] for row in scored], marker='o', label=target)
            column[1].axhline(least, color=line.get_color(), linestyle=':')
        column[1].set(xlabel='iteration', ylabel='held-out score (dotted: required)')
        column[1].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(out / 'curves.png', dpi=120)


def learning_curves(methods, families):
    """Training losses of all runs of tools/prove_learning.py so far, one panel a method."""
    across = min(5, len(methods))
    figure, axes = plt.subplots(-(-len(methods) // across), across, squeeze=False,
                                figsize=(4 * across, -(-len(methods) // across) * 4))
    for axis, method in zip(axes.flat, methods, strict=False):
        for family in families:
            for scalars in (learning.OUT / method / family).glob('*/vis_data/scalars.json'):
                rows = [row for row in learning.read(scalars) if 'loss' in row]
                axis.plot([row['step'] for row in rows], [row['loss'] for row in rows],
                          label=family)
        axis.set(title=method, xlabel='iteration', ylabel='training loss', yscale='log')
    axes.flat[0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(learning.OUT / 'curves.png', dpi=120)
