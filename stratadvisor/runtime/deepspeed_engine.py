"""DeepSpeed ZeRO 0 to 3 with offload, configured by ds_config.json; under torchrun or the deepspeed launcher.

The only file that imports deepspeed.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import deepspeed
import torch
from torch import nn

from .config import ConfigError, TrainConfig
from .distributed import Context
from .engine import Engine, initial_value, materialize
from .optimizer import build, parameter_groups, set_learning_rate

CONFIG_NAME = "ds_config.json"
TAG = "deepspeed"


def read_config(config: TrainConfig) -> dict[str, Any]:
    """Return DeepSpeed's configuration.

    Raises:
        ConfigError: it is missing or not JSON.

    """
    path = config.directory / str(config.settings.get("deepspeed_config", CONFIG_NAME))
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; the engine deepspeed needs it") from None
    except (OSError, ValueError) as problem:
        raise ConfigError(f"{path} cannot be read: {problem}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path} must hold an object")
    return data


def check_batch(settings: dict[str, Any], context: Context) -> None:
    """Prove the batch identity that DeepSpeed asserts, and that it accumulates as often as the data says.

    Raises:
        ConfigError: it does not hold for the number of processes started.

    """
    accumulation = settings.get("gradient_accumulation_steps", 1)
    if accumulation != context.micro_batches:
        raise ConfigError(
            f"{CONFIG_NAME} has gradient_accumulation_steps {accumulation}, train_config.json {context.micro_batches}"
        )
    total, micro = settings.get("train_batch_size"), settings.get("train_micro_batch_size_per_gpu")
    if total is not None and micro is not None and total != micro * accumulation * context.world_size:
        raise ConfigError(
            f"{CONFIG_NAME} has train_batch_size {total}, but {micro} sequences x {accumulation} micro-batches x"
            f" {context.world_size} processes = {micro * accumulation * context.world_size}:"
            " start as many processes as the plan has devices"
        )


def skip_shared_memory_collectives() -> None:
    """Let DeepSpeed use plain gloo on CPUs.

    It would compile its shared-memory collectives at first use: half a minute, a C++ compiler, and a lock file that
    makes every later run wait for ever when the first one is killed.
    """
    compatible = getattr(deepspeed.ops, "__compatible_ops__", None)
    if isinstance(compatible, dict):
        compatible["deepspeed_shm_comm"] = False


class DeepSpeedEngine(Engine):
    """Sharding, precision, clipping and the optimizer step are DeepSpeed's."""

    def __init__(self, config: TrainConfig, context: Context, model: nn.Module) -> None:
        if config.method == "qlora" or config.compile_model:
            raise ConfigError("qlora and compile_model are not supported with the engine deepspeed")
        self.settings = read_config(config)
        check_batch(self.settings, context)
        super().__init__(config, context, model)
        # DeepSpeed divides by the accumulation steps too, and scales fp16 losses itself.
        self.scaler.enabled, self.scaler.scale = False, 1.0

    def expect(self, tokens: int) -> None:
        """Set the tokens of a step."""
        super().expect(tokens)
        self.loss_factor *= self.context.micro_batches

    def prepare(self, model: nn.Module) -> nn.Module:
        """Hand the model to DeepSpeed; with stage 3 no rank ever holds all of it."""
        # DeepSpeed calls collectives by names that newer torch warns about, once a line and rank.
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
        if self.device.type == "cpu" and not self.config.settings.get("shared_memory_collectives", False):
            skip_shared_memory_collectives()
        deepspeed.init_distributed(dist_backend=self.config.backend, dist_init_required=False, verbose=False)
        zero = self.settings.get("zero_optimization", {})
        if zero.get("stage", 0) == 3:
            self._materialize_in_parts(model)
        else:
            materialize(model, self.device, self.config.seed)
        own = None if "optimizer" in self.settings else build(self.config, model)
        wrapped: nn.Module
        wrapped, self._optimizer, _, _ = deepspeed.initialize(
            model=model,
            optimizer=own,
            model_parameters=parameter_groups(model, self.config.weight_decay),
            config=self.settings,
            dist_init_required=False,
        )
        return wrapped

    def _storage_type(self) -> torch.dtype:
        for key, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
            if self.settings.get(key, {}).get("enabled", False):
                return dtype
        return torch.float32

    def _materialize_in_parts(self, model: nn.Module) -> None:
        """Initialise one module after the other and divide it among the ranks at once."""
        for prefix, module in reversed(list(model.named_modules())):  # children before parents
            own = dict(module.named_parameters(recurse=False))
            for name, parameter in own.items():
                if parameter.is_meta:
                    full = f"{prefix}.{name}" if prefix else name
                    value = initial_value(model, full, parameter, self.device, self.config.seed)
                    value = value.to(self._storage_type())
                    setattr(module, name, nn.Parameter(value, requires_grad=parameter.requires_grad))
            if own:
                deepspeed.zero.Init(module=module, config_dict_or_path=self.settings)

    def make_optimizer(self) -> Any:
        """Return DeepSpeed's optimizer."""
        return self._optimizer

    def forward_backward(self, inputs: torch.Tensor, labels: torch.Tensor, *, last: bool) -> torch.Tensor:
        """Add the gradient of one micro-batch."""
        loss: torch.Tensor = self.model(inputs, labels)
        self.model.backward(loss * self.loss_factor)  # type: ignore[operator]
        if not last:
            self.model.step()  # type: ignore[operator]  # counts the micro-batch; no update before the boundary
        return loss.detach()

    def update(self, learning_rate: float, tokens: int) -> None:
        """Let DeepSpeed clip and step."""
        set_learning_rate(self.optimizer, learning_rate)
        self.model.step()  # type: ignore[operator]

    def save(self, directory: Path) -> None:
        """Write DeepSpeed's own checkpoint, every rank its part."""
        self.model.save_checkpoint(str(directory), tag=TAG, save_latest=False)  # type: ignore[operator]

    def load(self, directory: Path) -> None:
        """Read it."""
        path, _ = self.model.load_checkpoint(str(directory), tag=TAG)  # type: ignore[operator]
        if path is None:
            raise ConfigError(f"{directory / TAG} has no DeepSpeed checkpoint")
