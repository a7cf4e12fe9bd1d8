"""Fully sharded data parallelism with torch's FSDP2; with replicas (HSDP) when shard_degree is below the world size."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as load_shards
from torch.distributed.checkpoint.state_dict_saver import save as save_shards
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from .config import ConfigError
from .engine import COMPUTE_TYPES, Engine, cast_storage, initial_value
from .integrity import note_sum, write_tensors


class FSDPEngine(Engine):
    """Parameters, gradients and optimizer states divided over ranks; one layer at a time is whole.

    Gradients are reduce-scattered in every micro-batch; across replicas only once a step, which is exact.
    """

    def prepare(self, model: nn.Module) -> nn.Module:
        """Shard every layer and the rest, then give each rank its part of the initial values."""
        if self.config.method == "qlora" or self.config.parameter_offload == "nvme":
            raise ConfigError("FSDP2 has neither 4-bit weights nor NVMe offload here: use single, ddp or deepspeed")
        check_averages(self.device)
        shard = self._shard_degree()
        replicate = self.context.world_size // (shard * self.config.tensor_parallel_degree)
        mesh = self._mesh(replicate, shard)
        self._replicated = replicate > 1
        self._shard_group = mesh.get_group("shard")
        offload = "cpu" in (self.config.parameter_offload, self.config.optimizer_offload)
        self._storage = torch.device("cpu") if offload else self.device
        pinned = self.device.type == "cuda" and bool(self.config.settings.get("pin_memory", True))
        on_cpu = OffloadPolicy() if not offload else CPUOffloadPolicy(pin_memory=pinned)
        options: dict[str, Any] = {"mesh": mesh, "mp_policy": self._precision(), "offload_policy": on_cpu}
        cast_storage(model, self.config)
        for layer in getattr(model, "layers", ()):
            if self.config.compile_model:
                layer.compile()
            fully_shard(layer, reshard_after_forward=bool(self.config.settings.get("reshard", True)), **options)
        fully_shard(model, **options)
        self._materialize(model)
        return model

    def _mesh(self, replicate: int, shard: int) -> DeviceMesh:
        if replicate > 1:
            return init_device_mesh(self.device.type, (replicate, shard), mesh_dim_names=("replicate", "shard"))
        return init_device_mesh(self.device.type, (shard,), mesh_dim_names=("shard",))

    def _shard_degree(self) -> int:
        world_size = self.context.world_size
        if self.config.engine == "fsdp2":
            return world_size
        if world_size % self.config.shard_degree:
            raise ConfigError(
                f"shard_degree {self.config.shard_degree} does not divide the {world_size} processes started"
            )
        return self.config.shard_degree

    def _precision(self) -> MixedPrecisionPolicy:
        """Return the policy: compute in 16 bit, reduce gradients in fp32."""
        if self.config.precision in ("fp32", "bf16_pure"):
            return MixedPrecisionPolicy()
        return MixedPrecisionPolicy(param_dtype=COMPUTE_TYPES[self.config.precision], reduce_dtype=torch.float32)

    def _materialize(self, model: nn.Module) -> None:
        """Fill the shards; a full parameter exists one at a time only."""
        if not any(p.is_meta for p in model.parameters()):
            return
        model.to_empty(device=self._storage)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                full = initial_value(model, name, parameter, self.device, self.config.seed).to(parameter.dtype)
                assert isinstance(parameter, DTensor)
                fill_shard(parameter, full, self._shard_group)

    def autocast(self) -> Any:
        """Return an empty context: FSDP casts by its own policy."""
        return torch.autocast(self.device.type, enabled=False)

    @contextmanager
    def micro_batch(self, *, last: bool) -> Iterator[None]:
        """Reduce across replicas in the last micro-batch only."""
        if self._replicated:
            self.model.set_requires_all_reduce(last)  # type: ignore[operator]
        yield

    def gradient_norm(self) -> torch.Tensor:
        """Return the norm over all shards; across replicas the shards are alike."""
        square = super().gradient_norm().square().to(self.device)
        dist.all_reduce(square, group=self._shard_group)
        return square.sqrt().to(self._storage)

    def save(self, directory: Path) -> None:
        """Write every rank's part (torch.distributed.checkpoint: readable with another number of ranks)."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        shards = directory / "shards"
        try:
            save_shards({"model": model, "optimizer": optimizer}, checkpoint_id=shards)
        except CheckpointException as problem:  # raised on every rank; no Exception, so nobody else would catch it
            raise OSError(_first_failure(problem)) from problem
        for own in shards.glob(f"__{self.context.rank}_*"):
            note_sum(own)
        if self.context.rank == 0:
            write_tensors(directory / "state.pt", {"scaler": self.scaler.state_dict()})

    def load(self, directory: Path) -> None:
        """Read this rank's part."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        try:
            load_shards({"model": model, "optimizer": optimizer}, checkpoint_id=directory / "shards")
        except CheckpointException as problem:
            raise OSError(_first_failure(problem)) from problem
        set_state_dict(self.model, self.optimizer, model_state_dict=model, optim_state_dict=optimizer)
        self.scaler.load_state_dict(torch.load(directory / "state.pt", weights_only=True)["scaler"])


def fill_shard(parameter: DTensor, whole: torch.Tensor, group: dist.ProcessGroup) -> None:
    """Copy into ``parameter`` what this rank of ``group`` keeps of ``whole``; nothing is sent.

    FSDP2 cuts along the first dimension as ``torch.chunk`` does: the last parts may be shorter, or empty.
    """
    parts, rank = whole.chunk(dist.get_world_size(group)), dist.get_rank(group)
    if rank < len(parts):
        parameter.to_local().copy_(parts[rank])


def check_averages(device: torch.device) -> None:
    """Refuse a torch whose gloo does not average: gradients would be sums, and training wrong without a word.

    FSDP2 asks for averages in its collectives. Torch 2.6 and 2.7 sum in gloo's reduce-scatter and refuse in its
    all-reduce (tried); 2.13 averages in both.

    Raises:
        ConfigError: on every rank.

    """
    world_size = dist.get_world_size()
    if device.type != "cpu" or world_size == 1:
        return
    given = torch.full((world_size,), float(dist.get_rank() + 1))
    mean = torch.empty(1)
    try:
        dist.reduce_scatter_tensor(mean, given, op=dist.ReduceOp.AVG)
        dist.all_reduce(given, op=dist.ReduceOp.AVG)
    except (RuntimeError, ValueError):  # known before anything is sent, so on every rank alike
        mean.zero_()
    wanted = (world_size + 1) / 2
    if not (torch.allclose(mean, torch.tensor(wanted)) and torch.allclose(given, torch.tensor(wanted))):
        raise ConfigError(
            f"gloo of torch {torch.__version__} does not average gradients, so FSDP2 cannot train on processors: "
            "install a newer torch (2.13 does), or plan with --strategy ddp"
        )


def _first_failure(problem: CheckpointException) -> str:
    """Return why the first rank failed, in one line."""
    for rank, (reason, _) in sorted(problem.failures.items()):
        return f"rank {rank}: {' '.join(str(reason).split())[:300]}"
    return "unknown reason"
