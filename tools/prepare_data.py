#!/usr/bin/env python3
"""Fetch, unpack and verify a data set: ``python tools/prepare_data.py coco``.

From its owners' servers into the folder that the configs read (docs/datasets.md). The same command
goes on where it was stopped, and fetches nothing that is there.
"""
import in_venv  # noqa: F401

# isort: split
import argparse
from pathlib import Path

from downstream.data import preparing
from downstream.errors import UserError, one_message


@one_message('the same command goes on where it was')
def main(argv=None):
    known = preparing.sources()
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('data', choices=known)
    parser.add_argument('--root', type=Path, metavar='FOLDER',
                        help="the data set's folder (default: as the configs have it)")
    parser.add_argument('--check-only', action='store_true', help='verify what is there')
    parser.add_argument('--full', action='store_true',
                        help='decode every image, not only look at its two ends')
    parser.add_argument('--keep-archives', action='store_true',
                        help='keep what was downloaded, once it is unpacked')
    args = parser.parse_args(argv)
    spec = known[args.data]
    root = args.root or preparing.root_of(spec)
    if not args.check_only:
        print(preparing.prepare(spec, root, args.keep_archives, args.full))
        return
    if problems := preparing.check(spec, root, args.full):
        raise UserError(f'{root} is not whole:\n  ' + '\n  '.join(problems))
    print(f'{root} is whole: {preparing.contents(spec, root)}')


if __name__ == '__main__':
    main()
