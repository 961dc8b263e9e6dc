"""The ledger, configs/metafile.yml: scores of runs go in, the tables of the pages come out.

Only a run of the experiment's own recipe, trained to its end and scored on the whole validation
set, counts as a reproduction; every other is listed apart, with what was different.
"""
import json
from pathlib import Path

from ruamel.yaml import YAML

from ..errors import UserError
from ..experiments import ROOT
from ..saving import whole_file

METAFILE = ROOT / 'configs' / 'metafile.yml'
BEGIN, END = '<!-- begin: tools/results.py writes this -->', '<!-- end -->'
# Metrics as the tables, the metafile and the evaluators call them, and their factor to percent.
METRICS = {
    'box AP': ('coco/bbox_mAP', 100), 'mask AP': ('coco/segm_mAP', 100),
    'mIoU': ('mIoU', 1), 'mIoU (ms+flip)': ('mIoU', 1), 'PQ': ('coco_panoptic/PQ', 1),
}
FEW = 3  # models that a method may have without a table of its own in the README
# Images of the whole validation sets.
WHOLE = {'COCO': 5000, 'ADE20K': 2000}


def yaml() -> YAML:
    """Reads and writes a file as people wrote it, comments included."""
    parser = YAML()
    parser.width = 100
    parser.indent(mapping=2, sequence=4, offset=2)
    return parser


def load(path: Path = METAFILE) -> dict:
    return yaml().load(path)


def save(ledger: dict, path: Path = METAFILE):
    with whole_file(path) as part, part.open('w') as file:
        yaml().dump(ledger, file)


def find(ledger: dict, config: Path) -> dict | None:
    """A config's entry."""
    return next((entry for entry in ledger['Models'] if entry['Name'] == Path(config).stem), None)


# ------------------------------------------------------------------------------------ collecting

def collect(ledger: dict, work_dir: Path) -> int:
    """Add the scores that tools/test.py left in a work dir; returns how many are new.

    Raises:
        UserError: no scores there, or of an experiment that the metafile does not have.
    """
    records = sorted(work_dir.glob('**/test_record.json'))
    if not records:
        raise UserError(f'{work_dir} holds no test_record.json, which tools/test.py writes: score '
                        'a checkpoint of this run first')
    new = 0
    for path in records:
        record = json.loads(path.read_text())
        entry = find(ledger, record['experiment'])
        if entry is None:
            raise UserError(f'{path}: the metafile has no experiment {record["experiment"]}')
        measured = to_entry(record)
        if 'Measured' not in entry:
            put(entry, 'Measured', [])
        if measured not in entry['Measured']:
            entry['Measured'].append(measured)
            new += 1
    return new


def to_entry(record: dict) -> dict:
    """A record of tools/test.py as the metafile has it."""
    names = {key: name for name, (key, _) in METRICS.items()
             if (name == 'mIoU (ms+flip)') == record['tta'] or key != 'mIoU'}
    metrics = {names[key]: round(METRICS[names[key]][1] * value, 2)
               for key, value in record['metrics'].items() if key in names}
    if not metrics:
        raise UserError(f'{record["experiment"]}: none of its metrics is in the tables: '
                        f'{", ".join(record["metrics"])}')
    dataset = 'ADE20K' if 'mIoU' in record['metrics'] else (
        'Objects365' if record.get('dataset', '').startswith('Objects365') else 'COCO')
    deviations = [*record['deviations'], *record.get('test_deviations', ())]
    if record['images'] != WHOLE.get(dataset, record['images']):
        deviations.append(f'scored on {record["images"]} of {WHOLE[dataset]} images')
    if record['tta'] and dataset != 'ADE20K':
        deviations.append('test-time augmentation')
    released = {'Released': record['released']} if 'released' in record else {}
    return dict(Metrics=metrics, Deviations=deviations, **released,
                Checkpoint=record['checkpoint'], Date=record['date'], Machine=record['machine'],
                Command=record['command'])


# --------------------------------------------------------------------------------------- tables

def published(entry: dict) -> dict:
    """All published metrics of an entry, by name."""
    return {name: value for result in entry.get('Results') or ()
            for name, value in result['Metrics'].items()}


def published_cost(entry: dict) -> dict:
    """{'params': in millions, 'flops': in billions} as printed, where they are."""
    names = {'params': 'Parameters (M)', 'flops': 'FLOPs (G)'}
    return {key: entry['Metadata'][name] for key, name in names.items()
            if name in entry['Metadata']}


def set_cost(entry: dict, cost: dict):
    """Keep what tools/complexity.py counted."""
    put(entry, 'Cost', {'Parameters (M)': round(cost['params'] / 1e6, 2),
                        'FLOPs (G)': round(cost['flops'] / 1e9, 1),
                        'Activations (GiB)': round(cost['activations'] / 2**30, 2)})


def put(entry: dict, key: str, value):
    """Set a key where it stands, or behind Metadata. (The empty line belongs to the last key.)"""
    if key in entry:
        entry[key] = value
    else:
        entry.insert(1 + list(entry).index('Metadata'), key, value)


def row(cells) -> str:
    return '| ' + ' | '.join('' if cell is None else str(cell) for cell in cells) + ' |'


def table(header, rows) -> list[str]:
    return [row(header), row(['---'] * len(header)), *map(row, rows), '']


def metrics_of(entries) -> list[str]:
    """The metrics that any of the entries has, in the order of METRICS."""
    found = {name for entry in entries for name in published(entry)}
    found |= {name for entry in entries for run in reproductions(entry) for name in run['Metrics']}
    return [name for name in METRICS if name in found]


def reproductions(entry) -> list[dict]:
    """Trainings repeated here."""
    return [run for run in entry.get('Measured') or ()
            if not run['Deviations'] and 'Released' not in run]


def released_scores(ledger) -> list[tuple[dict, dict]]:
    """(entry, run) of released models that were scored here as published."""
    return [(entry, run) for entry in ledger['Models'] for run in entry.get('Measured') or ()
            if 'Released' in run and not run['Deviations']]


def ours(entry, metric: str) -> str:
    """The newest reproduction's value."""
    runs = [run for run in reproductions(entry) if metric in run['Metrics']]
    return f'{max(runs, key=lambda run: run["Date"])["Metrics"][metric]:.1f}' if runs else '-'


def groups(ledger) -> dict[str, list]:
    """Entries by method, in the order of the metafile's collections."""
    return {collection['Name']: [entry for entry in ledger['Models']
                                 if entry['In Collection'] == collection['Name']]
            for collection in ledger['Collections']}


def pair(printed, counted) -> str:
    """What is printed and what was counted here."""
    return f'{"-" if printed is None else printed} / {"-" if counted is None else counted}'


def results_page(ledger) -> str:
    lines = ['# Results', '', '<!-- Written by tools/results.py from configs/metafile.yml. -->', '',
             'Of each pair of numbers the first is published, the second is ours: scores of',
             'trainings repeated here with the same recipe, on the whole validation set; costs',
             'counted by `tools/complexity.py`. A dash: not published, or not repeated here yet',
             '(one training takes eight GPUs for days).', '']
    notes = []
    for name, entries in groups(ledger).items():
        metrics = metrics_of(entries)
        rows = []
        for entry in entries:
            printed, cost = published_cost(entry), entry.get('Cost') or {}
            mark = ''
            for text in (entry.get('Discrepancy'), entry.get('Note')):
                if text:
                    notes += [] if text in notes else [text]
                    mark += f' [{1 + notes.index(text)}]'
            rows.append([
                f'[{entry["Name"]}](../configs/{entry["Name"]}.py){mark}',
                *(pair(published(entry).get(metric), ours(entry, metric)) for metric in metrics),
                pair(printed.get('params'), cost.get('Parameters (M)')),
                pair(printed.get('flops'), cost.get('FLOPs (G)')),
                cost.get('Activations (GiB)')])
        lines += [f'## {name}', '', *table(
            ['experiment', *metrics, 'parameters, M', 'FLOPs, G', 'activations, GiB'], rows)]
    lines += ['Activations: what backbone and neck keep for the backward pass of one image of the '
              "table's input size in float32, without checkpointing.", '', '## Notes', '']
    lines += [f'[{number}] {text.strip()}\n' for number, text in enumerate(notes, 1)]
    if scored := released_scores(ledger):
        lines += ['## Released models, scored here', '', 'By `tools/reproduce.py`, on the whole '
                  'validation set.', '', *table(
                      ['experiment', 'published / here', 'checkpoint', 'date', 'machine'],
                      [[entry['Name'], ', '.join(
                          f'{name} {published(entry).get(name, "-")} / {value}'
                          for name, value in run['Metrics'].items()), f'`{run["Checkpoint"]}`',
                        run['Date'], run['Machine']] for entry, run in scored])]
    others = [(entry['Name'], run) for entry in ledger['Models']
              for run in entry.get('Measured') or () if run['Deviations']]
    if others:
        lines += ['## Other runs', '', 'Not comparable with published numbers, for the reason '
                  'given.', '', *table(
                      ['experiment', 'scores', 'different', 'checkpoint', 'date', 'machine'],
                      [[name, ', '.join(f'{key} {value}' for key, value in run['Metrics'].items()),
                        '; '.join(run['Deviations']), f'`{run["Checkpoint"]}`', run['Date'],
                        run['Machine']] for name, run in others])]
    lines += ['## Sources', '']
    lines += [f'- {paper["Title"]}: {paper["URL"]}' for paper in ledger['Papers']]
    return '\n'.join(lines).rstrip() + '\n'


def readme_tables(ledger) -> str:
    """Published scores: a table for each method with many, one for all others.

    Schedules of one model share a row.
    """
    lines, others = [], []
    for name, entries in groups(ledger).items():
        models = {}
        for entry in entries:
            if published(entry):
                models.setdefault(entry['Name'].rpartition('_')[0], []).append(entry)
        metrics = metrics_of(sum(models.values(), []))
        rows = []
        for model, runs in models.items():
            schedules = [run['Name'].rpartition('_')[2] for run in runs]
            label = f'`{model}_{"{" + ",".join(schedules) + "}" if runs[1:] else schedules[0]}`'
            scores = {metric: ' / '.join(str(published(run).get(metric, '-')) for run in runs)
                      for metric in metrics if any(metric in published(run) for run in runs)}
            cost = [published_cost(runs[0]).get(key) for key in ('params', 'flops')]
            rows.append([label, *(scores.get(metric) for metric in metrics), *cost])
            if len(models) <= FEW:
                others.append([name, label, ', '.join(
                    f'{score} {metric}' for metric, score in scores.items()), *cost])
        if len(models) > FEW:
            lines += table([name, *metrics, 'parameters, M', 'FLOPs, G'], rows)
    lines += table(['other methods', 'experiment', 'score', 'parameters, M', 'FLOPs, G'], others)
    return '\n'.join(lines)


def pages(ledger) -> dict[Path, str]:
    """What each generated page should hold."""
    readme = (ROOT / 'README.md').read_text()
    before, _, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise UserError(f'README.md has no lines {BEGIN} and {END}')
    return {ROOT / 'docs' / 'results.md': results_page(ledger),
            ROOT / 'README.md': f'{before}{BEGIN}\n\n{readme_tables(ledger)}\n{END}{after}'}
