#!/usr/bin/env python3
"""Keep the ledger: collect scores of runs into configs/metafile.yml and write the tables from it.

    tools/results.py work_dirs/maskrcnn_focalnet_t_1x    # collect what tools/test.py left there
    tools/results.py                                     # write docs/results.md and README's tables
    tools/results.py --check                             # fail where those are stale

Only a run of the experiment's own recipe, trained to its end and scored on the whole validation
set, counts as a reproduction; every other is listed apart, with what was different.
"""
import in_venv  # noqa: F401

# isort: split
import argparse
from pathlib import Path

from downstream.errors import UserError, one_message
from downstream.scoring import ledger


@one_message('nothing was written; run the same command again')
def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('work_dirs', nargs='*', type=Path, metavar='WORK_DIR',
                        help='runs whose scores tools/test.py has recorded')
    parser.add_argument('--check', action='store_true',
                        help='write nothing; fail where the pages are stale')
    args = parser.parse_args(argv)
    entries = ledger.load()
    for work_dir in args.work_dirs:
        print(f'{work_dir}: {ledger.collect(entries, work_dir)} new')
    stale = [path.relative_to(ledger.ROOT) for path, text in ledger.pages(entries).items()
             if not path.is_file() or path.read_text() != text]
    if args.check:
        if stale:
            raise UserError(f'{" and ".join(map(str, stale))} are not what configs/metafile.yml '
                            'says: run tools/results.py')
        return
    if args.work_dirs:
        ledger.save(entries)
    for path, text in ledger.pages(entries).items():
        path.write_text(text)
    print('written: ' + (', '.join(map(str, stale)) or 'nothing new'))


if __name__ == '__main__':
    main()
