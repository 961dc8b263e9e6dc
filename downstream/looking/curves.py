"""Curves of the demo; those of any run are in report.py."""
import os
from pathlib import Path

import matplotlib

from ..scoring.transfer import read

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
        rows = read(log)
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
