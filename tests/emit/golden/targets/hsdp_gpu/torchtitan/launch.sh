#!/usr/bin/env bash
# Written by stratadvisor "0.1.0" for plan "PLAN_DIGEST" ("hsdp"). README.md tells how to use it.
#
# bash launch.sh [options of torchtitan.train]     one process for each device of this node
# Variables: PYTHON, NPROC_PER_NODE, STRATADVISOR_RUN_DIR, OMP_NUM_THREADS
# Several nodes: NNODES, NODE_RANK, MASTER_ADDR, MASTER_PORT, or srun with one task on each node
# TOKENIZER (folder of a Hugging Face tokenizer), DATASET (c4), DATASET_PATH

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

here="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
bundle="$(CDPATH='' cd -- "$here/../.." && pwd)"
[[ -f $bundle/train_config.json ]] || fail "$bundle is not the bundle; leave this folder where it was written"
python="${PYTHON:-python3}"
command -v -- "$python" >/dev/null || fail "there is no '$python'; set PYTHON to the interpreter that has torch"

plan_nodes=16
devices_of_node() { # node rank
    printf '%s\n' 8 # "h100": node rank 0 to 15
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

[[ -n ${TOKENIZER:-} ]] || fail "set TOKENIZER to a folder with the tokenizer of a model of 32000 tokens"
[[ -d $TOKENIZER ]] || fail "TOKENIZER names $TOKENIZER, which is no folder"
export TOKENIZER
export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"
command=("$python" -m torch.distributed.run --nproc-per-node="$processes")
if ((nodes == 1)); then
    command+=(--standalone --local-addr=127.0.0.1)
else
    command+=(--nnodes="$nodes" --node-rank="$node_rank" --master-addr="$master" --master-port="$port")
fi
exec "${command[@]}" "-m" torchtitan.train --module titan_config --config "planned" "$@"
