"""The table of tools/transfer.py, as Markdown, rows of LaTeX and CSV."""
import csv
import io
import statistics
from dataclasses import dataclass

from .transfer import Trial

NAMES = {'bbox_mAP': 'box AP', 'segm_mAP': 'mask AP', 'mIoU': 'mIoU', 'PQ': 'PQ'}
LATEX = str.maketrans({**{sign: f'\\{sign}' for sign in '&%$#_{}'}, '\\': r'\textbackslash{}',
                       '~': r'\textasciitilde{}', '^': r'\textasciicircum{}'})


@dataclass
class Cell:
    """A backbone in a head: its runs, and what is said of them all."""
    trials: list[Trial]

    @property
    def done(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.result]

    @property
    def cost(self) -> dict:
        return next((trial.cost for trial in self.trials if trial.cost), {})

    def values(self, key: str) -> list[float]:
        return [trial.result['scores'][key] for trial in self.done
                if key in trial.result['scores']]

    def mean(self, key: str) -> tuple[float, float] | None:
        """A score's mean over the seeds and its sample standard deviation (of one: 0)."""
        values = self.values(key)
        return values and (statistics.fmean(values),
                           statistics.stdev(values) if len(values) > 1 else 0.) or None

    @property
    def images_a_second(self) -> float | None:
        values = [trial.result['images_a_second'] for trial in self.done]
        return statistics.fmean(values) if values else None

    @property
    def memory(self) -> float | None:
        """GiB, the most of all seeds."""
        return max((trial.result['memory'] for trial in self.done if trial.result['memory']),
                   default=None)


class Table:
    """All runs as {head: {backbone: Cell}}, in the order in which they were asked for."""

    def __init__(self, trials: list[Trial]):
        self.trials = trials
        self.heads, self.backbones = {}, list(dict.fromkeys(trial.backbone for trial in trials))
        for trial in trials:
            row = self.heads.setdefault(trial.head, {})
            row.setdefault(trial.backbone, Cell([])).trials.append(trial)

    def keys(self, head: str) -> list[str]:
        """The scores that runs of a head have."""
        return list(dict.fromkeys(key for cell in self.heads[head].values() for trial in cell.done
                                  for key in trial.result['scores']))

    def rows(self, spread: str):
        """The heading, then a list of cells for each backbone; ``spread`` is the sign of +-."""
        heading = ['backbone']
        for head in self.heads:
            scores = [NAMES[key.split('/')[-1]] for key in self.keys(head)]
            heading += [f'{head} {what}' for what in ('M params', 'GFLOPs', *scores)]
        yield heading
        for backbone in self.backbones:
            row = [backbone]
            for head, cells in self.heads.items():
                cell = cells[backbone]
                row += [shown(cell.cost.get('params'), 1e6), shown(cell.cost.get('flops'), 1e9)]
                for key in self.keys(head):
                    found = cell.mean(key)
                    row.append('' if found is None else f'{found[0]:.1f}' + (
                        f' {spread} {found[1]:.1f}' if len(cell.values(key)) > 1 else ''))
            yield row

    def markdown(self) -> str:
        heading, *rows = self.rows('±')
        lines = [heading, ['---'] * len(heading), *rows]
        text = '\n'.join('| ' + ' | '.join(line) + ' |' for line in lines) + '\n'
        failed = [f'- {trial.head} {trial.backbone} seed {trial.seed}: '
                  + ' '.join(trial.error.split()) for trial in self.trials if trial.error]
        return text + ('\nNot there:\n\n' + '\n'.join(failed) + '\n' if failed else '')

    def latex(self) -> str:
        """Rows for a tabular; the first, a comment, says what the columns are."""
        heading, *rows = self.rows('PM')
        return '% ' + ' & '.join(heading) + '\n' + ''.join(
            ' & '.join(cell.translate(LATEX).replace('PM', r'$\pm$') if i else
                       cell.translate(LATEX) for i, cell in enumerate(row)) + ' \\\\\n'
            for row in rows)

    def csv(self) -> str:
        """A line for each run."""
        keys = list(dict.fromkeys(key for head in self.heads for key in self.keys(head)))
        out = io.StringIO()
        writer = csv.writer(out, lineterminator='\n')
        writer.writerow(['head', 'backbone', 'seed', 'budget', 'weights', *keys, 'parameters',
                         'flops', 'images_a_second', 'memory_gib', 'first_loss', 'last_loss',
                         'work_dir', 'error'])
        for trial in self.trials:
            result = trial.result or {}
            scores = result.get('scores', {})
            writer.writerow([trial.head, trial.backbone, trial.seed, trial.settings.budget,
                             trial.settings.weights, *(scores.get(key) for key in keys),
                             trial.cost.get('params'), trial.cost.get('flops'),
                             *(result.get(key) for key in ('images_a_second', 'memory',
                                                           'first_loss', 'last_loss')),
                             trial.folder, ' '.join(trial.error.split())])
        return out.getvalue()


def shown(value: float | None, unit: float) -> str:
    return '' if value is None else f'{value / unit:.1f}'
