"""One training step as every strategy sees it; this base is the strategy of a single device."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .clock import Clock, Mark
from .config import ConfigError, TrainConfig
from .distributed import Context
from .integrity import write_tensors
from .lora import LoRALinear, adapter_value, quantize
from .optimizer import LossScaler, build, local_gradients, set_learning_rate

CLASSES = {
    "single": ("engine", "Engine"),
    "ddp": ("ddp", "DDPEngine"),
    "fsdp2": ("fsdp", "FSDPEngine"),
    "hsdp": ("fsdp", "FSDPEngine"),
    "tp_fsdp2": ("tensor_parallel", "TensorParallelEngine"),
    "hierarchical": ("hierarchical", "HierarchicalEngine"),
    "deepspeed": ("deepspeed_engine", "DeepSpeedEngine"),
    "diloco": ("diloco", "engine_for"),
    "diloco_nodes": ("diloco_nodes", "NodeDiLoCoEngine"),
    "async_sgd": ("async_sgd", "AsyncEngine"),
    "adaptive": ("adaptive_engine", "AdaptiveEngine"),
}
"""Engine of train_config.json -> module of this package and class, or a function that chooses one."""
COMPUTE_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "bf16_pure": torch.bfloat16}


class Engine:
    """Holds model and optimizer; the gradient of a step is the mean over the tokens of all replica ranks.

    Each rank's loss is a sum over its tokens, scaled by ranks / tokens of all ranks; the mean that the collectives take
    over ranks then is the mean over tokens, whatever share of the batch each rank has.
    """

    communication: list[tuple[Mark, Mark]] | None = None
    """Waits for communication since the last ``take_communication``; None when they cannot be told from computing."""
    step = 0
    """The optimizer step under way, from 0."""
    horizon = 0
    """Length of the run that fractions in the settings refer to."""
    exchange_interval = 0
    """Steps between exchanges of replicas that run on their own; 0 when all ranks step together."""
    rate_factor = 1.0
    """Learning rate over the schedule's: above 1 while the batch is larger than the plan's."""
    report_seconds = 1.0
    """Steps are reported together for about this long."""
    counts_samples = False
    """Whether the schedule and the end go by samples, in steps of the plan's batch, instead of steps."""
    meets_early = True
    """Whether a rank that was asked to stop may go to the next exchange before it is due."""

    def __init__(self, config: TrainConfig, context: Context, model: nn.Module) -> None:
        self.config, self.context, self.device = config, context, context.device
        self.clock = Clock(self.device)
        self.scaler = LossScaler(enabled=config.precision == "fp16")
        self.expect(config.sequence_length * sum(context.batch_of_rank[r] for r in self.replica_ranks()))
        self.num_parameters = sum(p.numel() for p in model.parameters())
        self.model = self.prepare(model)
        self.parameters: list[torch.Tensor] = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = self.make_optimizer()

    def replica_ranks(self) -> list[int]:
        """Return the ranks whose gradients are averaged in every step."""
        return list(range(self.context.world_size))

    def control_group(self) -> Any:
        """Return the gloo group over ``replica_ranks``."""
        return self.context.control

    def expect(self, tokens: int) -> None:
        """Set how many tokens the replica ranks have in a step (those that count in the loss)."""
        self.loss_factor = len(self.replica_ranks()) / tokens

    def prepare(self, model: nn.Module) -> nn.Module:
        """Give the model its storage and its place."""
        if self.communication is None and self.context.world_size == 1:
            self.communication = []
        return self.on_device(model)

    def on_device(self, model: nn.Module) -> nn.Module:
        """Return the whole model on this rank's device, initialised, cast and compiled as configured."""
        materialize(model, self.device, self.config.seed)
        model.to(self.device)
        if self.config.method == "qlora":
            quantize(model, self.device)
        cast_storage(model, self.config)
        if self.config.compile_model:
            model.compile()
        return model

    def make_optimizer(self) -> Any:
        """Return the optimizer of the configuration."""
        return build(self.config, self.model)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context of a forward pass in the precision of the plan."""
        if self.config.precision in ("fp32", "bf16_pure"):
            return nullcontext()
        return torch.autocast(self.device.type, dtype=COMPUTE_TYPES[self.config.precision])

    @contextmanager
    def micro_batch(self, *, last: bool) -> Iterator[None]:
        """Surround forward and backward of one micro-batch; only the last of a step communicates."""
        yield

    def forward_backward(self, inputs: torch.Tensor, labels: torch.Tensor, *, last: bool) -> torch.Tensor:
        """Add the gradient of one micro-batch; return the sum of its losses."""
        with self.micro_batch(last=last):
            with self.autocast():
                loss: torch.Tensor = self.model(inputs, labels)
            (loss * (self.loss_factor * self.scaler.scale)).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def gradient_norm(self) -> torch.Tensor:
        """Return the norm of the whole gradient."""
        norms = torch._foreach_norm(local_gradients(self.parameters))  # noqa: SLF001
        whole: torch.Tensor = torch.stack(norms).norm()
        return whole

    def update(self, learning_rate: float, tokens: int) -> None:
        """Clip and apply the accumulated gradient; an fp16 step whose gradient overflowed is skipped.

        ``tokens``: what this rank had in this step.
        """
        factor, finite = 1 / self.scaler.scale, True
        if self.config.gradient_clip_norm > 0 or self.scaler.enabled:
            norm = self.gradient_norm() * factor
            if self.scaler.enabled:
                finite = bool(torch.isfinite(norm))
            multiplier = torch.full_like(norm, factor)
            if self.config.gradient_clip_norm > 0:
                multiplier = multiplier * (self.config.gradient_clip_norm / (norm + 1e-6)).clamp(max=1.0)
            torch._foreach_mul_(local_gradients(self.parameters), multiplier)
        if finite:
            set_learning_rate(self.optimizer, learning_rate)
            self.optimizer.step()
        self.scaler.update(finite=finite)
        self.optimizer.zero_grad()

    def part(self, dataset: Any) -> Any:
        """Return what of the dataset the ranks of this job read: all of it."""
        return dataset

    def begin(self, loop: Any) -> None:
        """Do what is due before the first step of a run, new or resumed."""

    def exchange(self, tokens: int) -> None:
        """Let replicas that ran on their own meet; ``tokens``: what this rank trained on since the last time."""

    def after_report(self, loop: Any, tables: torch.Tensor) -> None:
        """Take what all ranks measured (ranks x steps x telemetry.FIELDS); called on all of them at the same step."""

    def take_communication(self) -> list[tuple[Mark, Mark]] | None:
        """Return the waits for communication since the last call."""
        waits = self.communication
        if waits is not None:
            self.communication = []
        return waits

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint needs beyond the model."""
        return {"optimizer": self.optimizer.state_dict(), "scaler": self.scaler.state_dict()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take back what ``state`` returned."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])

    def plain_model(self) -> nn.Module:
        """Return the model without wrappers."""
        return self.model

    def save(self, directory: Path) -> None:
        """Write the state into a directory that exists on every node; called on every rank."""
        if self.context.rank == self.context.node_ranks[0]:
            write_tensors(directory / "state.pt", {"model": self.plain_model().state_dict(), **self.state()})

    def load(self, directory: Path) -> None:
        """Read what ``save`` wrote; called on every rank."""
        state = torch.load(directory / "state.pt", map_location="cpu", weights_only=True)
        self.plain_model().load_state_dict(state.pop("model"))
        self.load_state(state)


def materialize(model: nn.Module, device: torch.device, seed: int) -> None:
    """Give parameters without storage (meta device) their initial values, one at a time."""
    for prefix, module in model.named_modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter.is_meta:
                full = f"{prefix}.{name}" if prefix else name
                value = initial_value(model, full, parameter, device, seed)
                setattr(module, name, nn.Parameter(value, requires_grad=parameter.requires_grad))


def initial_value(
    model: nn.Module, name: str, parameter: torch.Tensor, device: torch.device, seed: int
) -> torch.Tensor:
    """Return the initial value of a parameter: the same on every rank and under every strategy."""
    adapter = adapter_value(name, parameter, device, seed)
    if adapter is not None:
        return adapter
    if not hasattr(model, "initial_value"):
        raise ConfigError(
            f"{type(model).__name__} lies on the meta device and has no initial_value: build it on the CPU"
        )
    value: torch.Tensor = model.initial_value(name, parameter, device, seed)  # type: ignore[operator]
    return value


def cast_storage(model: nn.Module, config: TrainConfig) -> None:
    """Store in 16 bit what the plan stores so: everything for bf16_pure, frozen weights of layers under adapters."""
    if config.precision == "bf16_pure":
        model.to(torch.bfloat16)
    elif config.method != "full" and config.precision != "fp32":
        small = COMPUTE_TYPES[config.precision]
        for module in model.modules():
            if isinstance(module, LoRALinear) and config.method == "lora":
                module.base.to(small)
        for parameter in model.parameters():
            if parameter.ndim == 3 and not parameter.requires_grad:  # stacked experts: most of a mixture's weights
                parameter.data = parameter.data.to(small)


def joined(config: TrainConfig, context: Context) -> Context:
    """Return the context of a newcomer after the run has given it a place.

    Raises:
        ConfigError: the engine has no places to take.

    """
    join = getattr(_module(config), "join", None)
    if join is None:
        raise ConfigError(f"nobody can join a run of the engine {config.engine} under way: --join is for async_sgd")
    place: Context = join(config, context)
    return place


def create(config: TrainConfig, context: Context, model: nn.Module) -> Engine:
    """Return the engine of the configuration."""
    module = _module(config)
    engine: Engine = getattr(module, CLASSES[config.engine][1])(config, context, model)
    return engine


def _module(config: TrainConfig) -> Any:
    try:
        return importlib.import_module(f".{CLASSES[config.engine][0]}", __package__)
    except ModuleNotFoundError as problem:
        raise ConfigError(f"engine {config.engine} needs {problem.name}, which is not installed or not here") from None
    except ImportError as problem:
        raise ConfigError(f"engine {config.engine} needs a newer torch than {torch.__version__}: {problem}") from None
