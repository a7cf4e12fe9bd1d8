"""Where this process stands among those that a launcher started: torchrun, srun, mpirun, Kubernetes, or by hand."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from stratadvisor.errors import UsageError

_FIRST_PORT, _NUM_PORTS = 20000, 20000
"""Range for the meeting port of a Slurm step without MASTER_PORT; the job's number picks one: jobs do not collide."""
_LARGEST = 2**31 - 1
DEFAULT_PORT = 29500
_MPI = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
"""Open MPI (docs.open-mpi.org, environment variables), MPICH's Hydra, Intel MPI: rank, size, and the local two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One process of a job of several."""

    rank: int
    local_rank: int
    node_rank: int | None
    """None where the launcher does not tell: the first node then gives out numbers."""
    num_nodes: int
    address: str
    """Host where all nodes meet."""
    port: int
    store_is_running: bool
    """torchrun already serves the meeting point; else the first node does."""
    job: str = ""
    """Tells this job's nodes from those of others; no secret."""

    @property
    def leads(self) -> bool:
        """Whether this process probes its node."""
        return self.local_rank == 0


def _number(environ: Mapping[str, str], name: str, largest: int = _LARGEST) -> int:
    try:
        value = int(environ[name])
    except KeyError:
        raise UsageError(
            f"the launcher set RANK or SLURM_PROCID but not {name}", hint="start with torchrun or srun, or without both"
        ) from None
    except ValueError:
        raise UsageError(f"{name} is {environ[name][:40]!r}, which is not a whole number") from None
    if not 0 <= value <= largest:
        raise UsageError(f"{name} is {value}, which is not between 0 and {largest}")
    return value


def place(environ: Mapping[str, str]) -> Place | None:
    """Return the place among several processes; None for a process that runs by itself.

    torchrun sets RANK, WORLD_SIZE and their local twins; srun sets SLURM_PROCID in a step of several tasks (a batch
    script has it too, but no SLURM_STEP_NUM_TASKS of its own); mpirun sets names of its own. A pod of Kubeflow is a
    node, whether torchrun runs in it or not. NNODES, NODE_RANK and MASTER_ADDR, which the emitted scripts read, place
    a process by hand, and NNODES with JOB_COMPLETION_INDEX a pod of an indexed Job.

    Raises:
        UsageError: the launcher's variables contradict each other.

    """
    if "RANK" in environ and "LOCAL_RANK" not in environ and "PET_NNODES" in environ:
        return _pod(environ, "PET_NODE_RANK" if "PET_NODE_RANK" in environ else "RANK", "PET_NNODES")
    if "RANK" in environ and "WORLD_SIZE" in environ:
        return _torchrun(environ)
    if "PET_NODE_RANK" in environ and "PET_NNODES" in environ:
        return _pod(environ, "PET_NODE_RANK", "PET_NNODES")
    for names in _MPI:
        if all(name in environ for name in names):
            return _mpi(environ, *names)
    if "SLURM_PROCID" in environ and "SLURM_STEP_NUM_TASKS" in environ:
        return _slurm(environ)
    if "NNODES" in environ and "NODE_RANK" in environ:
        return _pod(environ, "NODE_RANK", "NNODES")
    if "NNODES" in environ and "JOB_COMPLETION_INDEX" in environ:
        return _pod(environ, "JOB_COMPLETION_INDEX", "NNODES")
    return None


def _pod(environ: Mapping[str, str], node_rank: str, num_nodes: str) -> Place | None:
    """Return the place of the one process of a node."""
    rank, count = _number(environ, node_rank), _number(environ, num_nodes)
    if count < 2:
        return None
    if rank >= count:
        raise UsageError(f"{node_rank}={rank} and {num_nodes}={count} contradict each other")
    address = environ.get("MASTER_ADDR") or environ.get("PET_MASTER_ADDR", "")
    if not address:
        raise UsageError(
            f"{num_nodes} is {count}, but MASTER_ADDR does not say where the nodes meet",
            hint="set it to a name or address of the first node (for an indexed Job, its first pod behind a service)",
        )
    port_name = "MASTER_PORT" if "MASTER_PORT" in environ else "PET_MASTER_PORT"
    port = _number(environ, port_name, 65535) if port_name in environ else DEFAULT_PORT
    return Place(
        rank=rank, local_rank=0, node_rank=rank, num_nodes=count, address=address, port=port, store_is_running=False
    )


def _mpi(environ: Mapping[str, str], rank_name: str, size_name: str, local_name: str, locals_name: str) -> Place | None:
    """Return the place under mpirun, which does not number nodes: the first process of each leads, rank 0 is first."""
    rank, size = _number(environ, rank_name), _number(environ, size_name)
    local_rank, local_size = _number(environ, local_name), _number(environ, locals_name)
    if size < 2:
        return None
    if local_size < 1 or local_rank >= local_size or rank >= size or size % local_size:
        raise UsageError(
            f"{rank_name}={rank}, {size_name}={size} and {locals_name}={local_size} do not tell the number of nodes",
            hint="start one process on every node: mpirun --map-by ppr:1:node",
        )
    address = environ.get("MASTER_ADDR", "")
    if not address and size > local_size:
        raise UsageError(
            "mpirun does not tell where the nodes meet", hint="add -x MASTER_ADDR=HOST with the host of rank 0"
        )
    return Place(
        rank=rank,
        local_rank=local_rank,
        node_rank=0 if rank == 0 else None,
        num_nodes=size // local_size,
        address=address or "127.0.0.1",
        port=_number(environ, "MASTER_PORT", 65535) if "MASTER_PORT" in environ else DEFAULT_PORT,
        store_is_running=False,
    )


def _torchrun(environ: Mapping[str, str]) -> Place | None:
    world_size = _number(environ, "WORLD_SIZE")
    if world_size < 2:
        return None
    local_size = _number(environ, "LOCAL_WORLD_SIZE") if "LOCAL_WORLD_SIZE" in environ else world_size
    rank = _number(environ, "RANK")
    if not 0 <= rank < world_size or local_size < 1 or world_size % local_size:
        raise UsageError(
            f"RANK={rank}, WORLD_SIZE={world_size} and LOCAL_WORLD_SIZE={local_size} contradict each other",
            hint="start the same number of processes on every node; one per node is enough",
        )
    return Place(
        rank=rank,
        local_rank=_number(environ, "LOCAL_RANK") if "LOCAL_RANK" in environ else rank % local_size,
        node_rank=_number(environ, "GROUP_RANK") if "GROUP_RANK" in environ else rank // local_size,
        num_nodes=world_size // local_size,
        address=environ.get("MASTER_ADDR", "localhost"),
        port=_number(environ, "MASTER_PORT", 65535) if "MASTER_PORT" in environ else DEFAULT_PORT,
        store_is_running=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def first_host(nodes: str) -> str:
    """Return the first name of a Slurm node list: ``gpu[07,12-15],cpu1`` -> ``gpu07``."""
    depth, end = 0, len(nodes)
    for position, sign in enumerate(nodes):
        depth += {"[": 1, "]": -1}.get(sign, 0)
        if sign == "," and depth == 0:
            end = position
            break
    return re.sub(r"\[([0-9]+)[^\]]*\]", r"\1", nodes[:end])


def _slurm(environ: Mapping[str, str]) -> Place | None:
    """Return the place in a step of srun.

    In a step over the components of a heterogeneous job (srun --het-group=0,1) these variables count over all of them
    (seen with Slurm 22.05).
    """
    if _number(environ, "SLURM_STEP_NUM_TASKS") < 2:
        return None
    job = _number(environ, "SLURM_JOB_ID") if "SLURM_JOB_ID" in environ else 0
    port = _number(environ, "MASTER_PORT", 65535) if "MASTER_PORT" in environ else _FIRST_PORT + job % _NUM_PORTS
    return Place(
        rank=_number(environ, "SLURM_PROCID"),
        local_rank=_number(environ, "SLURM_LOCALID"),
        node_rank=_number(environ, "SLURM_NODEID"),
        num_nodes=_number(environ, "SLURM_STEP_NUM_NODES"),
        address=environ.get("MASTER_ADDR") or first_host(environ.get("SLURM_STEP_NODELIST", "localhost")),
        port=port,
        store_is_running=False,
        job=f"{job}.{environ.get('SLURM_STEP_ID', '')}"[:64],
    )
