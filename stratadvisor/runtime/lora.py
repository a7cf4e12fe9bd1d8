"""Low-rank adapters (LoRA, arXiv:2106.09685; QLoRA, arXiv:2305.14314) on the matrices of attention and MLP."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from .config import ConfigError, TrainConfig

TARGETS = ("query", "key", "value", "output", "gate", "up", "down")
ALPHA_OVER_RANK = 2.0
"""Scale of the adapter: alpha = 2 rank, the usual choice."""


class LoRALinear(nn.Module):
    """A frozen linear layer plus ``up(down(x))`` of rank r; the adapter starts as zero."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.adapter_down = nn.Parameter(torch.empty(rank, base.in_features, device=base.weight.device))
        self.adapter_up = nn.Parameter(torch.empty(base.out_features, rank, device=base.weight.device))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the base layer's output plus the adapter's."""
        down = F.linear(x, self.adapter_down.to(x.dtype))
        output: torch.Tensor = self.base(x)
        return output + ALPHA_OVER_RANK * F.linear(down, self.adapter_up.to(down.dtype)).to(output.dtype)


def adapter_value(name: str, parameter: torch.Tensor, device: torch.device, seed: int) -> torch.Tensor | None:
    """Return the initial value of an adapter's matrix, or None for any other parameter."""
    if name.endswith("adapter_up"):
        return torch.zeros(parameter.shape, device=device)
    if name.endswith("adapter_down"):
        random = torch.Generator(device=device).manual_seed(seed * 1_000_003 + sum(name.encode()))
        return torch.randn(parameter.shape, generator=random, device=device) / math.sqrt(parameter.shape[1])
    return None


def add_adapters(model: nn.Module, config: TrainConfig) -> None:
    """Freeze the model and put an adapter beside every target layer, in place.

    Raises:
        ConfigError: QLoRA without a GPU or without bitsandbytes; no layer to adapt.

    """
    if config.method == "qlora":
        _check_quantization(config)
    model.requires_grad_(False)
    found = 0
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in TARGETS and isinstance(child, nn.Linear):
                setattr(module, name, LoRALinear(child, config.lora_rank))
                found += 1
    if not found:
        raise ConfigError(f"the model has no layer named {', '.join(TARGETS)}: there is nothing to adapt")


def _check_quantization(config: TrainConfig) -> None:
    if config.device_kind not in ("cuda", "rocm", "cpu"):
        raise ConfigError(
            f"qlora is for CUDA, ROCm and CPUs, the device here is {config.device_kind}: use lora instead"
        )
    try:
        import bitsandbytes  # noqa: F401
    except ImportError:
        raise ConfigError("qlora needs bitsandbytes, which is not installed: pip install bitsandbytes") from None
    if config.engine in ("fsdp2", "hsdp", "deepspeed"):
        raise ConfigError(f"qlora with the engine {config.engine} is not supported by this runtime: use ddp or single")


def quantize(model: nn.Module, device: torch.device) -> None:
    """Replace the frozen base of every adapter by a 4-bit (NF4, double quantized) one, in place.

    Raises:
        ConfigError: this bitsandbytes has no 4-bit layers for the device.

    """
    import bitsandbytes as bnb

    def restore(module: nn.Module, state: dict[str, torch.Tensor], prefix: str, *_: object) -> None:
        """Take the scales of a checkpoint together with its weights; the layer itself only knows the weights."""
        name = f"{prefix}weight"
        scales = {key: state.pop(key) for key in list(state) if key.startswith(f"{name}.")}
        if scales:
            module.weight = bnb.nn.Params4bit.from_prequantized(
                data=state[name], quantized_stats=scales, requires_grad=False, device=str(device), module=module
            )

    for module in list(model.modules()):
        if not isinstance(module, LoRALinear):
            continue
        base = module.base
        small = bnb.nn.Linear4bit(
            base.in_features,
            base.out_features,
            bias=base.bias is not None,
            compute_dtype=torch.bfloat16,
            compress_statistics=True,
            quant_type="nf4",
        )
        small.weight = bnb.nn.Params4bit(base.weight.detach().cpu(), requires_grad=False, quant_type="nf4")
        if base.bias is not None:
            small.bias = nn.Parameter(base.bias.detach(), requires_grad=False)
        try:
            module.base = small.to(device)
        except (RuntimeError, NotImplementedError, AttributeError) as problem:
            raise ConfigError(
                f"bitsandbytes {bnb.__version__} cannot store 4-bit weights on {device.type} ({problem}):"
                " update it, or use the method lora"
            ) from None
        module.base.register_load_state_dict_pre_hook(restore)  # type: ignore[no-untyped-call]
