"""Tensor parallelism inside a node times FSDP2 across: neighbouring ranks share every layer and one micro-batch.

Column- then row-parallel products as in Megatron-LM (arXiv:1909.08053, section 3), norms and residuals divided along
the sequence (arXiv:2205.05198, section 4.2), the vocabulary divided for embedding, head and loss. All with torch's
DTensor (torch.distributed.tensor.parallel); what data-parallel ranks share is sharded by ``FSDPEngine``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from .config import ConfigError, TrainConfig
from .engine import initial_value
from .fsdp import FSDPEngine, fill_shard
from .model import Transformer


class TensorParallelEngine(FSDPEngine):
    """Ranks r with the same ``r // degree`` hold parts of the same layers; the others hold shards of those parts."""

    def prepare(self, model: nn.Module) -> nn.Module:
        """Divide the layers among neighbouring ranks, then shard what each has over the rest."""
        self._degree = self.config.tensor_parallel_degree
        check(model, self.config, self.context.world_size)
        shard = self._shard_degree()
        shape = (self.context.world_size // (shard * self._degree), shard, self._degree)
        self._mesh3 = init_device_mesh(self.device.type, shape, mesh_dim_names=("replicate", "shard", "tensor"))
        self._tensor_group = self._mesh3.get_group("tensor")
        assert isinstance(model, Transformer)
        divide(model, self._mesh3["tensor"])
        return super().prepare(model)

    def _shard_degree(self) -> int:
        ranks = self.context.world_size // self._degree
        shard = self.config.shard_degree
        if self.context.world_size != self.config.world_size or ranks % shard:
            shard = ranks  # fewer processes than planned: no replicas
        return shard

    def _mesh(self, replicate: int, shard: int) -> DeviceMesh:
        names = ("replicate", "shard") if replicate > 1 else ("shard",)
        return self._mesh3[names] if replicate > 1 else self._mesh3["shard"]

    def _materialize(self, model: nn.Module) -> None:
        """Fill the shards of the tensor-parallel parts."""
        model.to_empty(device=self._storage)
        part = self._mesh3.get_local_rank("tensor")
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                full = initial_value(model, name, parameter, self.device, self.config.seed).to(parameter.dtype)
                assert isinstance(parameter, DTensor)
                place = parameter.placements[-1]
                if isinstance(place, Shard):
                    full = full.chunk(self._degree, place.dim)[part]
                fill_shard(parameter, full, self._shard_group)

    @contextmanager
    def micro_batch(self, *, last: bool) -> Iterator[None]:
        """Keep the loss and its gradient divided along the vocabulary."""
        with super().micro_batch(last=last), loss_parallel():
            yield

    def forward_backward(self, inputs: torch.Tensor, labels: torch.Tensor, *, last: bool) -> torch.Tensor:
        """Add the gradient of one micro-batch; return the sum of its losses, the same on all ranks that share it."""
        loss = super().forward_backward(inputs, labels, last=last)
        return loss.full_tensor() if isinstance(loss, DTensor) else loss

    def gradient_norm(self) -> torch.Tensor:
        """Return the norm of the whole gradient: parts summed, what every tensor-parallel rank has counted once."""
        square = torch.zeros((), device=self._storage)
        for parameter in self.parameters:
            if parameter.grad is not None:
                assert isinstance(parameter, DTensor)
                assert isinstance(parameter.grad, DTensor)
                copies = self._degree if parameter.placements[-1].is_replicate() else 1
                square = square + parameter.grad.to_local().float().square().sum() / copies
        square = square.to(self.device)
        dist.all_reduce(square, group=self._shard_group)
        dist.all_reduce(square, group=self._tensor_group)
        return square.sqrt().to(self._storage)


def divide(model: Transformer, mesh: DeviceMesh) -> None:
    """Make every parameter a part of itself on ``mesh``; activations between products are parts of the sequence."""
    along_sequence = SequenceParallel(use_local_output=True)
    plan: dict[str, Any] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(use_local_output=False),
    }
    if model.positions is not None:
        plan["positions"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0))
    if model.head is not None:
        plan["head"] = ColwiseParallel(input_layouts=Replicate(), output_layouts=Shard(-1), use_local_output=False)
    parallelize_module(model, mesh, plan)
    # the scores, of the head or of a tied embedding, are parts of the vocabulary for every position
    model.norm.register_forward_hook(lambda _module, _inputs, output: output.redistribute(placements=[Replicate()]))
    for layer in model.layers:
        whole_sequence = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
        block: dict[str, Any] = {
            "attention_norm": along_sequence,
            "attention": whole_sequence,
            "attention.query": ColwiseParallel(),
            "attention.key": ColwiseParallel(),
            "attention.value": ColwiseParallel(),
            "attention.output": RowwiseParallel(output_layouts=Shard(1)),
            "mlp_norm": along_sequence,
            "mlp": whole_sequence,
            "mlp.up": ColwiseParallel(),
            "mlp.down": RowwiseParallel(output_layouts=Shard(1)),
        }
        if model.dimensions.gated_mlp:
            block["mlp.gate"] = ColwiseParallel()
        parallelize_module(layer, mesh, block)


def check(model: nn.Module, config: TrainConfig, world_size: int) -> None:
    """Raise ConfigError, in one sentence, for what cannot be divided."""
    degree = config.tensor_parallel_degree
    if config.method != "full":
        raise ConfigError(
            f"tensor parallelism with {config.method} adapters is not supported by this runtime: use fsdp2"
        )
    if not isinstance(model, Transformer):
        raise ConfigError(
            f"tensor parallelism divides the transformer of train_config.json, not {type(model).__name__}: use fsdp2"
        )
    shape = model.dimensions
    if shape.num_experts:
        raise ConfigError(f"{shape.name}: tensor parallelism of experts is not supported by this runtime: use fsdp2")
    divided = {
        "the processes started": world_size,
        "sequence_length": config.sequence_length,
        "model.num_attention_heads": shape.num_attention_heads,
        "model.num_key_value_heads": shape.num_key_value_heads,
        "model.ffn_hidden_size": shape.ffn_hidden_size,
        "model.vocab_size": shape.vocab_size,
    }
    if shape.learned_positions:
        divided["model.max_sequence_length"] = shape.max_sequence_length
    for name, number in divided.items():
        if number % degree:
            raise ConfigError(f"tensor_parallel_degree {degree} does not divide {name} ({number})")
