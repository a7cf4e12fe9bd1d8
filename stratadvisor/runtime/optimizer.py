"""The optimizer of the plan, its learning-rate schedule, and the scale of fp16 losses."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from .config import ConfigError, TrainConfig

ADAM_BETAS = (0.9, 0.95)
"""As in the Llama and GPT-3 reports (arXiv:2005.14165, appendix B)."""
FINAL_SHARE = 0.1
"""The cosine ends at this share of the highest learning rate (arXiv:2203.15556, table A)."""


def dimensions(parameter: Any) -> int:
    """Return the dimensions of the whole parameter; one divided by ZeRO-3 keeps its shape in ``ds_shape``."""
    return len(getattr(parameter, "ds_shape", parameter.shape))


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return trainable parameters in two groups: matrices decay, vectors (norms, biases) do not."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trainable if dimensions(p) >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trainable if dimensions(p) < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


class Together:
    """Several optimizers used as one."""

    def __init__(self, optimizers: list[torch.optim.Optimizer]) -> None:
        self.optimizers = optimizers

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """All groups."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def step(self) -> None:
        """Step each."""
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the states, by position."""
        return {str(i): optimizer.state_dict() for i, optimizer in enumerate(self.optimizers)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what ``state_dict`` returned."""
        for i, optimizer in enumerate(self.optimizers):
            optimizer.load_state_dict(state[str(i)])


def build(config: TrainConfig, model: nn.Module, betas: tuple[float, float] = ADAM_BETAS) -> Any:
    """Return the optimizer over the trainable parameters of ``model``.

    Raises:
        ConfigError: it needs a GPU, a package or a newer torch that is not here, or does not divide as asked.

    """
    groups = parameter_groups(model, config.weight_decay)
    rate = config.learning_rate
    on_gpu = config.device_kind in ("cuda", "rocm")
    # one pass over all states; on a CPU (torch 2.4 and later) a sixth of the time of one operation after another
    fused = on_gpu or config.device_kind == "cpu"
    if config.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=rate, betas=betas, eps=1e-8, fused=fused)
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=rate, momentum=float(config.settings.get("momentum", 0.0)))
    if config.optimizer == "adamw8bit":
        if not on_gpu:
            raise ConfigError(f"adamw8bit needs a GPU, the device here is {config.device_kind}: use adamw")
        try:
            import bitsandbytes
        except ImportError:
            raise ConfigError(
                "adamw8bit needs bitsandbytes, which is not installed: pip install bitsandbytes"
            ) from None
        return bitsandbytes.optim.AdamW8bit(groups, lr=rate, betas=betas)
    if not hasattr(torch.optim, config.optimizer.capitalize()):
        raise ConfigError(f"{config.optimizer} is not in torch {torch.__version__}: update torch or use adamw")
    if config.optimizer == "adafactor":
        return torch.optim.Adafactor(groups, lr=rate, weight_decay=config.weight_decay)
    return _muon(config, model, betas, fused=fused)


def _muon(config: TrainConfig, model: nn.Module, betas: tuple[float, float], *, fused: bool) -> Together:
    """Return Muon for the matrices of the layers and AdamW for embeddings, head and vectors."""
    if config.engine in ("fsdp2", "hsdp", "deepspeed"):
        raise ConfigError(f"muon works on whole matrices, which the engine {config.engine} divides: use ddp or adamw")
    matrices: list[torch.Tensor] = []
    others: list[torch.Tensor] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            inner = parameter.ndim == 2 and not any(part in name for part in ("embedding", "positions", "head"))
            (matrices if inner else others).append(parameter)
    muon = torch.optim.Muon(
        matrices, lr=config.learning_rate, weight_decay=config.weight_decay, adjust_lr_fn="match_rms_adamw"
    )
    adam = torch.optim.AdamW(others, lr=config.learning_rate, betas=betas, weight_decay=0.0, fused=fused)
    return Together([muon, adam])


def learning_rate(config: TrainConfig, step: float, warmup_steps: float) -> float:
    """Return the rate of a step (from 0): linear warm-up, then a cosine to a tenth at ``total_steps``."""
    if step < warmup_steps:
        return config.learning_rate * (step + 1) / (warmup_steps + 1)
    if config.total_steps <= warmup_steps:
        return config.learning_rate
    progress = min(1.0, (step - warmup_steps) / (config.total_steps - warmup_steps))
    return config.learning_rate * (FINAL_SHARE + (1 - FINAL_SHARE) * 0.5 * (1 + math.cos(math.pi * progress)))


def set_learning_rate(optimizer: Any, rate: float) -> None:
    """Set the rate of every group."""
    for group in optimizer.param_groups:
        group["lr"] = rate


class LossScaler:
    """Scale of the loss for fp16 gradients: halved when they overflow, doubled after a quiet while.

    Constants of torch.amp.GradScaler; ours because one pass then does unscaling, clipping and token weighting.
    """

    def __init__(self, *, enabled: bool, growth_interval: int = 2000) -> None:
        self.enabled = enabled
        self.scale = 65536.0 if enabled else 1.0
        self._quiet_steps, self._growth_interval = 0, growth_interval

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs."""
        return {"scale": self.scale, "quiet_steps": self._quiet_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what ``state_dict`` returned."""
        self.scale, self._quiet_steps = state["scale"], state["quiet_steps"]

    def update(self, *, finite: bool) -> None:
        """Note whether the gradients of a step were finite."""
        if not self.enabled:
            return
        if not finite:
            self.scale, self._quiet_steps = max(1.0, self.scale / 2), 0
            return
        self._quiet_steps += 1
        if self._quiet_steps == self._growth_interval:
            self.scale, self._quiet_steps = self.scale * 2, 0


def local_gradients(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Return the gradients that this rank holds, as plain tensors that share their memory."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    return [g.to_local() if hasattr(g, "to_local") else g for g in gradients]
