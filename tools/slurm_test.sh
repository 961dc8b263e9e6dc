#!/usr/bin/env bash
# Score on a Slurm cluster: tools/slurm_test.sh PARTITION JOB_NAME CONFIG CHECKPOINT [test.py's flags]
# GPUS, GPUS_PER_NODE, CPUS_PER_TASK and SRUN_ARGS say how, e.g. GPUS=16 SRUN_ARGS='--time=2-0'.
set -euo pipefail
if [ $# -lt 4 ]; then sed -n 2,3p "$0" >&2; exit 1; fi

PARTITION=$1
JOB_NAME=$2
CONFIG=$3
CHECKPOINT=$4
GPUS=${GPUS:-8}
GPUS_PER_NODE=${GPUS_PER_NODE:-$((GPUS < 8 ? GPUS : 8))}
TOOLS=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [ -x "$TOOLS/../.venv/bin/python" ]; then VENV="$TOOLS/../.venv/bin/python"; fi
PYTHON=${PYTHON:-${VENV:-python3}}

# SRUN_ARGS is several words on purpose.
# shellcheck disable=SC2086
exec srun -p "$PARTITION" --job-name="$JOB_NAME" \
    --gres=gpu:"$GPUS_PER_NODE" \
    --ntasks="$GPUS" \
    --ntasks-per-node="$GPUS_PER_NODE" \
    --cpus-per-task="${CPUS_PER_TASK:-5}" \
    --kill-on-bad-exit=1 \
    ${SRUN_ARGS:-} \
    "$PYTHON" -u "$TOOLS/test.py" "$CONFIG" "$CHECKPOINT" --launcher slurm "${@:5}"
