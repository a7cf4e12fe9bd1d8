"""Shard a module whose dimensions do not divide evenly, fill the shards, and compare what they make with the whole.

python -m torch.distributed.run --standalone --nproc-per-node 4 runtime_shards.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from stratadvisor.runtime.fsdp import fill_shard

ROWS = (1, 2, 3, 5, 8)


def compare(mesh: DeviceMesh) -> None:
    """Print, on rank 0, how many rows each rank of the shard group holds of each parameter."""
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(3, rows, bias=False) for rows in ROWS))
    fully_shard(model, mesh=mesh)
    model.to_empty(device="cpu")
    group = mesh.get_group("shard")
    for parameter, rows in zip(model.parameters(), ROWS, strict=True):
        assert isinstance(parameter, DTensor)
        whole = torch.arange(3.0 * rows).reshape(rows, 3)
        with torch.no_grad():
            parameter.to_local().fill_(-1)
            fill_shard(parameter, whole, group)
        assert torch.equal(parameter.full_tensor(), whole), (rows, parameter.full_tensor())
        held: list[int] = [0] * dist.get_world_size(group)
        dist.all_gather_object(held, parameter.to_local().size(0), group=group)
        if dist.get_rank() == 0:
            print(f"{len(held)} shards of {rows}: {held}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    compare(init_device_mesh("cpu", (4,), mesh_dim_names=("shard",)))
    compare(init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))
    dist.destroy_process_group()
