#!/usr/bin/env bash
# Written by stratadvisor "0.1.0" for plan "PLAN_DIGEST" ("zero3"). README.md tells how to use it.
#
# bash launch.sh [options of train.py]     one process for each device of this node
# Variables: PYTHON, NPROC_PER_NODE, STRATADVISOR_RUN_DIR, OMP_NUM_THREADS
# Several nodes: NNODES, NODE_RANK, MASTER_ADDR, MASTER_PORT, or srun with one task on each node
# STRATADVISOR_LAUNCHER: torchrun (default) or deepspeed

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

plan_nodes=2
devices_of_node() { # node rank
    printf '%s\n' 8 # "a100": node rank 0 to 1
}

nodes="${NNODES:-}"
node_rank="${NODE_RANK:-}"
master="${MASTER_ADDR:-}"
port="${MASTER_PORT:-}"
if [[ -z $nodes && -z $node_rank && -n ${SLURM_STEP_NUM_NODES:-} ]]; then
    # Inside srun: one task on each node, which starts all processes of the node.
    nodes=$SLURM_STEP_NUM_NODES
    whole_number SLURM_STEP_NUM_NODES "$nodes" 1
    whole_number SLURM_JOB_ID "${SLURM_JOB_ID:-0}" 0 # bash would run what stands in brackets in a "number"
    if [[ ${SLURM_STEP_NUM_TASKS:-$nodes} != "$nodes" ]]; then
        fail "srun started $SLURM_STEP_NUM_TASKS tasks on $nodes nodes; start one on each: srun --ntasks-per-node=1"
    fi
    node_rank=$SLURM_NODEID
    node_list="${SLURM_STEP_NODELIST:-${SLURM_JOB_NODELIST:-}}"
    hosts=()
    if [[ $node_list != *'['* ]]; then
        IFS=, read -r -a hosts <<<"$node_list"
    elif command -v scontrol >/dev/null; then
        names="$(scontrol show hostnames "$node_list")" || fail "scontrol cannot read the node list '$node_list'"
        mapfile -t hosts <<<"$names"
    fi
    if [[ -z ${hosts[*]-} && -z $master ]]; then
        fail "the nodes of this job cannot be listed without scontrol; set MASTER_ADDR to the first of '$node_list'"
    fi
    first_host="${hosts[0]:-}"
    master="${master:-$first_host}"
    port="${port:-$((15000 + ${SLURM_JOB_ID:-0} % 15000))}" # two jobs on a node take different ones
fi
nodes="${nodes:-$plan_nodes}"
whole_number NNODES "$nodes" 1
((nodes == plan_nodes || nodes == 1)) || note "the plan is for $plan_nodes nodes; $nodes take part"
if ((nodes == 1)); then
    node_rank=0
else
    missing=''
    [[ -n $node_rank ]] || missing+=' NODE_RANK'
    [[ -n $master ]] || missing+=' MASTER_ADDR'
    [[ -n $port ]] || missing+=' MASTER_PORT'
    if [[ -n $missing ]]; then
        fail "this plan uses $nodes nodes, and not set:$missing; start it on every node with NNODES=$nodes," \
            "NODE_RANK=0 to $((nodes - 1)), MASTER_ADDR=address of node 0, MASTER_PORT=29500;" \
            "or with srun; for a trial on this node alone set NNODES=1"
    fi
    whole_number NODE_RANK "$node_rank" 0
    whole_number MASTER_PORT "$port" 1
    ((node_rank < nodes)) || fail "NODE_RANK is $node_rank, but there are $nodes nodes: 0 to $((nodes - 1))"
fi
processes="${NPROC_PER_NODE:-$(devices_of_node "$node_rank")}"

whole_number NPROC_PER_NODE "$processes" 1
export STRATADVISOR_RUN_DIR="${STRATADVISOR_RUN_DIR:-$bundle/run}"
export PYTHONUNBUFFERED=1

# Decided by the plan; a variable that is set already wins.
for name in NCCL_SOCKET_IFNAME GLOO_SOCKET_IFNAME; do
    if ((nodes > 1)) && [[ ${!name:-} == lo ]]; then
        note "$name is lo, which no other node reaches: connections will be refused; unset it or name a real interface"
    fi
done
set_default CUDA_DEVICE_ORDER PCI_BUS_ID # the order in which the devices were measured
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

case "${STRATADVISOR_LAUNCHER:-torchrun}" in
torchrun)
    command=("$python" -m torch.distributed.run --nproc-per-node="$processes")
    if ((nodes == 1)); then
        command+=(--standalone --local-addr=127.0.0.1)
    else
        command+=(--nnodes="$nodes" --node-rank="$node_rank" --master-addr="$master" --master-port="$port")
    fi
    ;;
deepspeed)
    command=("$python" -m deepspeed.launcher.runner --no_local_rank)
    if ((nodes == 1)); then
        free_port='import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
        command+=(--hostfile="$bundle/no-hostfile" --master_port="${MASTER_PORT:-$("$python" -c "$free_port")}")
        if [[ -z ${CUDA_VISIBLE_DEVICES:-} ]]; then
            command+=(--num_gpus="$processes")
        elif [[ $CUDA_VISIBLE_DEVICES =~ ^[0-9]+(,[0-9]+)*$ ]]; then
            # That launcher ignores the variable beside --num_gpus: hand the numbers over instead.
            command+=(--include="localhost:$(cut -d, -f"1-$processes" <<<"$CUDA_VISIBLE_DEVICES")")
            unset CUDA_VISIBLE_DEVICES
        else
            fail "the deepspeed launcher takes device numbers only, not CUDA_VISIBLE_DEVICES='$CUDA_VISIBLE_DEVICES';" \
                "use STRATADVISOR_LAUNCHER=torchrun"
        fi
    else
        # That launcher numbers the slots of the hostfile from 0 and overwrites the variable.
        [[ -z ${CUDA_VISIBLE_DEVICES:-} ]] || fail "the deepspeed launcher does not read CUDA_VISIBLE_DEVICES on several" \
            "nodes; use STRATADVISOR_LAUNCHER=torchrun, or start it yourself with slots=all devices of a node in the" \
            "hostfile and --include=HOST:NUMBERS"
        command+=(--hostfile="$bundle/hostfile" --no_ssh --num_nodes="$nodes" --node_rank="$node_rank")
        command+=(--master_addr="$master" --master_port="$port")
        [[ -z ${NPROC_PER_NODE:-} ]] || command+=(--num_gpus="$processes")
    fi
    ;;
*)
    fail "STRATADVISOR_LAUNCHER must be torchrun or deepspeed, not '$STRATADVISOR_LAUNCHER'"
    ;;
esac

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
