#!/usr/bin/env bash
# Score with several processes, one a GPU: tools/dist_test.sh CONFIG CHECKPOINT GPUS [test.py's flags]
# Several machines: run it on each, with NNODES, NODE_RANK, MASTER_ADDR and PORT set.
set -euo pipefail
if [ $# -lt 3 ]; then sed -n 2,3p "$0" >&2; exit 1; fi

CONFIG=$1
CHECKPOINT=$2
GPUS=$3
if ! [[ $GPUS =~ ^[1-9][0-9]*$ ]]; then
    echo "error: GPUS is a number of processes, not '$GPUS'" >&2; sed -n 2,3p "$0" >&2; exit 1
fi
TOOLS=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [ -x "$TOOLS/../.venv/bin/python" ]; then VENV="$TOOLS/../.venv/bin/python"; fi
PYTHON=${PYTHON:-${VENV:-python3}}

exec "$PYTHON" "$TOOLS/launch.py" "$GPUS" \
    "$TOOLS/test.py" "$CONFIG" "$CHECKPOINT" --launcher pytorch "${@:4}"
