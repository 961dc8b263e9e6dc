"""The page of tools/transfer.py: scores, costs, curves and example images of all backbones."""
import statistics
from pathlib import Path

from mmengine.config import Config

from ..data.checks import check_data
from ..errors import UserError
from ..saving import write_whole
from ..scoring.predictions import build_dataset, load_predictions
from ..scoring.transfer import missed
from ..scoring.transfer_table import NAMES, Table
from .charts import COLORS, line_chart, main_score
from .pages import data_uri, save_page, template
from .pictures import draw
from .report import read_scalars

EXAMPLES = 3  # images of each head


def write_page(table: Table, out: Path) -> Path:
    """Write index.html, table.md, table.tex and table.csv.

    Raises:
        UserError: ``out`` cannot be written.
    """
    page = save_page(render(table), out, '--out')
    for suffix, text in ('md', table.markdown()), ('tex', table.latex()), ('csv', table.csv()):
        write_whole(out / f'table.{suffix}', text)
    return page


def render(table: Table) -> str:
    settings = table.trials[0].settings
    colors = {name: COLORS[i % len(COLORS)] for i, name in enumerate(table.backbones)}
    heads = []
    for head, cells in table.heads.items():
        pictures, notes = examples(cells)
        heads.append(dict(
            name=head, cells=cells, keys=table.keys(head), charts=charts(cells, colors),
            pictures=pictures, notes=notes, experiment=next(iter(cells.values())).trials[0]
            .recipe.config, size=next((cell.cost['input'] for cell in cells.values()
                                       if cell.cost), None)))
    return template('transfer.html.j2').render(
        settings=settings, heads=heads, names=NAMES, backbones=table.backbones,
        failed=[trial for trial in table.trials if trial.error], missed=missed(table.trials),
        done=sum(bool(trial.result) for trial in table.trials), trials=table.trials,
        markdown=table.markdown())


def charts(cells: dict, colors: dict) -> list:
    """The loss and the main score over iterations, means over seeds; of what has begun, too."""
    losses, scores, score = {}, {}, None
    for backbone, cell in cells.items():
        runs = [read_scalars(trial.folder)[0] for trial in cell.trials]
        score = score or main_score([key for rows in runs for row in rows if 'loss' not in row
                                     for key in row if key not in ('step', 'at', 'when')])
        for found, key in (losses, 'loss'), (scores, score):
            line = means(runs, key)
            if line[0]:
                found[backbone] = line
    drawn = []
    if losses:
        drawn.append(line_chart('Training loss (log scale)', losses, yscale='log', colors=colors))
    if scores:
        percent = 100 if score.startswith('coco/') else 1
        drawn.append(line_chart(
            f'Validation: {score}', {name: (x, [percent * value for value in y])
                                     for name, (x, y) in scores.items()},
            ylabel='%', colors=colors))
    return drawn


def means(runs: list[list[dict]], key: str) -> tuple[list, list]:
    """(iterations, means of the runs that logged something there)."""
    values = {}
    for rows in runs:
        for row in rows:
            if key in row:
                values.setdefault(row['at'], []).append(row[key])
    return sorted(values), [statistics.fmean(values[at]) for at in sorted(values)]


def examples(cells: dict) -> tuple[list, list[str]]:
    """A few test images, [(words, picture), ...] each: the truth, then what each backbone says."""
    rows, notes = {}, []
    for backbone, cell in cells.items():
        trial = next(iter(cell.done), None)
        if trial is None:
            continue
        try:
            predictions = load_predictions(trial.folder / 'results.pkl')
            cfg = Config.fromfile(trial.folder / 'config.py', import_custom_modules=False)
            check_data(cfg, 'test')
        except (UserError, OSError) as error:
            notes.append(f'No pictures of {backbone}: {error}')
            continue
        dataset = build_dataset(cfg)
        for index in sorted({len(predictions) * i // EXAMPLES for i in range(EXAMPLES)}):
            truth, found = draw(dataset, index, predictions[index])
            rows.setdefault(index, [('ground truth', data_uri(truth))]).append(
                (backbone, data_uri(found)))
    return list(rows.values()), notes
