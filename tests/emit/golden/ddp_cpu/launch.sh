#!/usr/bin/env bash
# Written by stratadvisor "0.1.0" for plan "PLAN_DIGEST" ("ddp"). README.md tells how to use it.
#
# bash launch.sh [options of train.py]     one process for each device of this node
# Variables: PYTHON, NPROC_PER_NODE, STRATADVISOR_RUN_DIR, OMP_NUM_THREADS

set -euo pipefail

fail() {
    printf 'launch.sh: %s\n' "$*" >&2
    exit 2
}

note() {
    printf 'launch.sh: %s\n' "$*" >&2
}

whole_number() { # name, value, smallest value
    if [[ ! $2 =~ ^(0|[1-9][0-9]{0,8})$ ]] || (($2 < $3)); then
        fail "$1 must be a whole number from $3, not '$2'"
    fi
}

set_default() { # name, value: a variable that is set already wins
    [[ -v $1 ]] || export "$1=$2"
}

bundle="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
[[ -f $bundle/train.py ]] || fail "train.py is not beside this script; run it where it lies (srun bash PATH/launch.sh)"
python="${PYTHON:-python3}"
command -v -- "$python" >/dev/null || fail "there is no '$python'; set PYTHON to the interpreter that has torch"

nodes="${NNODES:-1}"
[[ $nodes == 1 ]] || fail "this plan uses one node, but NNODES is '$nodes'"
if [[ ${SLURM_STEP_NUM_TASKS:-1} != 1 ]]; then
    fail "srun started $SLURM_STEP_NUM_TASKS copies; one starts all processes: srun --nodes=1 --ntasks=1"
fi
processes="${NPROC_PER_NODE:-2}"

whole_number NPROC_PER_NODE "$processes" 1
export STRATADVISOR_RUN_DIR="${STRATADVISOR_RUN_DIR:-$bundle/run}"
export PYTHONUNBUFFERED=1

# Decided by the plan; a variable that is set already wins.
if ((nodes == 1)) && [[ -e /sys/class/net/lo ]]; then
    set_default GLOO_SOCKET_IFNAME lo # one node needs no host name that resolves; beside NCCL gloo carries host values
fi
if [[ ! -v OMP_NUM_THREADS ]]; then # torchrun would set 1
    cores="$(nproc)"
    quota=max period=100000
    if [[ -r /sys/fs/cgroup/cpu.max ]]; then
        read -r quota period </sys/fs/cgroup/cpu.max || quota=max
    fi
    if [[ $quota != max ]] && ((quota / period < cores)); then
        cores=$((quota / period))
    fi
    export OMP_NUM_THREADS=$((cores > processes ? cores / processes : 1))
fi

command=("$python" -m torch.distributed.run --nproc-per-node="$processes")
command+=(--standalone --local-addr=127.0.0.1)

# SIGTERM or Ctrl-C asks for the end: a checkpoint is written and the exit code is 0. A second one ends at once.
set_default TORCH_ELASTIC_SHUTDOWN_TIMEOUT 300 # the checkpoint has to fit into it
asked=0
child=
# shellcheck disable=SC2329 # the trap below invokes it
ask() {
    asked=$((asked + 1))
    if ((asked == 1)) && { : >"$STRATADVISOR_RUN_DIR/stop"; } 2>/dev/null; then
        note "asked to stop: a checkpoint is written first"
    elif [[ -n $child ]]; then
        kill -TERM "$child" 2>/dev/null || true
    fi
}
trap ask TERM INT
"${command[@]}" "$bundle/train.py" "$@" &
child=$!
code=0
wait "$child" || code=$?
while kill -0 "$child" 2>/dev/null; do # a signal ends the wait early
    code=0
    wait "$child" || code=$?
done
if ((code != 0 && asked > 0)) && [[ -f $STRATADVISOR_RUN_DIR/ended.json ]]; then
    note "stopped as asked; the launcher's complaint about the signal is no failure. --resume goes on"
    code=0
fi
exit "$code"
