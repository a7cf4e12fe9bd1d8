"""The transformer of a plan: decoder or encoder, dense or mixture of experts, built from its dimensions alone."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from .config import ConfigError, ModelConfig, TrainConfig
from .foreign import ForeignModule, make

ROPE_BASE = 10000.0
"""arXiv:2104.09864, section 3.2.2."""


def _norm(model: ModelConfig) -> nn.Module:
    """Return LayerNorm where the model's norms have a bias, RMSNorm (arXiv:1910.07467) where not."""
    if model.norm_bias:
        return nn.LayerNorm(model.hidden_size)
    return nn.RMSNorm(model.hidden_size, eps=1e-6)


def _rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Turn pairs (i, i + d/2) of the last dimension by the angles of their positions."""
    first, second = x.float().chunk(2, dim=-1)
    turned = torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
    return turned.to(x.dtype)


class Attention(nn.Module):
    """Grouped-query attention (arXiv:2305.13245) over torch's scaled_dot_product_attention."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.heads, self.groups, self.head_dim = model.num_attention_heads, model.num_key_value_heads, model.head_dim
        self.causal, self.rotary = model.family == "decoder", not model.learned_positions
        width, bias = model.hidden_size, model.attention_bias
        self.query = nn.Linear(width, self.heads * self.head_dim, bias=bias)
        self.key = nn.Linear(width, self.groups * self.head_dim, bias=bias)
        self.value = nn.Linear(width, self.groups * self.head_dim, bias=bias)
        # Families with a bias in their norms (GPT-2, BERT, OPT) have one here too; Qwen2 has it in q, k and v only.
        self.output = nn.Linear(self.heads * self.head_dim, width, bias=bias and model.norm_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return attention of (batch, length, hidden)."""
        batch, length, _ = x.shape
        # -1: all heads, or this rank's part of them under tensor parallelism
        query = self.query(x).view(batch, length, -1, self.head_dim).transpose(1, 2)
        key = self.key(x).view(batch, length, -1, self.head_dim).transpose(1, 2)
        value = self.value(x).view(batch, length, -1, self.head_dim).transpose(1, 2)
        if self.rotary:
            exponents = torch.arange(0, self.head_dim, 2, device=x.device, dtype=torch.float32) / self.head_dim
            angles = torch.arange(length, device=x.device, dtype=torch.float32)[:, None] * ROPE_BASE**-exponents
            query, key = _rotate(query, angles.cos(), angles.sin()), _rotate(key, angles.cos(), angles.sin())
        if self.groups != self.heads:
            key = key.repeat_interleave(self.heads // self.groups, dim=1)
            value = value.repeat_interleave(self.heads // self.groups, dim=1)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        merged: torch.Tensor = self.output(mixed.transpose(1, 2).reshape(batch, length, -1))
        return merged


class MLP(nn.Module):
    """SwiGLU (arXiv:2002.05202) when gated, else GELU between two matrices."""

    def __init__(self, model: ModelConfig, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(model.hidden_size, width, bias=model.mlp_bias) if model.gated_mlp else None
        self.up = nn.Linear(model.hidden_size, width, bias=model.mlp_bias)
        self.down = nn.Linear(width, model.hidden_size, bias=model.mlp_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the MLP of every position."""
        inner = F.gelu(self.up(x)) if self.gate is None else F.silu(self.gate(x)) * self.up(x)
        result: torch.Tensor = self.down(inner)
        return result


class MixtureOfExperts(nn.Module):
    """Top-k routed experts (weights normalised over the k) plus shared ones, without a balancing loss.

    The experts' weights are stacked, so that every parameter has a gradient even when an expert gets no token.
    """

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        if model.mlp_bias:
            raise ConfigError(f"{model.name}: experts with a bias in their MLP are not supported by this runtime")
        experts, width, hidden = model.num_experts, model.ffn_hidden_size, model.hidden_size
        self.top_k = max(1, model.num_experts_per_token)
        self.router = nn.Linear(hidden, experts, bias=False)
        self.gate = nn.Parameter(torch.empty(experts, width, hidden)) if model.gated_mlp else None
        self.up = nn.Parameter(torch.empty(experts, width, hidden))
        self.down = nn.Parameter(torch.empty(experts, hidden, width))
        self.shared = MLP(model, model.num_shared_experts * width) if model.num_shared_experts else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the weighted sum of each token's experts."""
        tokens = x.reshape(-1, x.shape[-1])
        scores, chosen = self.router(tokens).float().softmax(-1).topk(self.top_k, dim=-1)
        scores = (scores / scores.sum(-1, keepdim=True)).to(x.dtype)
        result = torch.zeros_like(tokens)
        for expert in range(self.up.shape[0]):
            rows, slots = (chosen == expert).nonzero(as_tuple=True)
            if rows.numel() == 0:
                continue
            part = tokens[rows]
            inner = F.linear(part, self.up[expert])
            inner = F.gelu(inner) if self.gate is None else F.silu(F.linear(part, self.gate[expert])) * inner
            output = F.linear(inner, self.down[expert]) * scores[rows, slots, None]
            result = result.index_add(0, rows, output.to(result.dtype))
        if self.shared is not None:
            result = result + self.shared(tokens)
        return result.view_as(x)


class Block(nn.Module):
    """One layer: attention and MLP, each after a norm and around a residual."""

    def __init__(self, model: ModelConfig, index: int) -> None:
        super().__init__()
        self.attention_norm, self.attention = _norm(model), Attention(model)
        self.mlp_norm = _norm(model)
        if model.num_experts and index >= model.num_dense_layers:
            self.mlp: nn.Module = MixtureOfExperts(model)
        else:
            dense = model.dense_ffn_hidden_size if model.num_experts else model.ffn_hidden_size
            self.mlp = MLP(model, dense)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output."""
        x = x + self.attention(self.attention_norm(x))
        result: torch.Tensor = x + self.mlp(self.mlp_norm(x))
        return result


class Transformer(nn.Module):
    """Embedding, layers, final norm, head, and the summed cross-entropy over positions whose label is not -100."""

    def __init__(self, model: ModelConfig, activation_checkpointing: str = "none") -> None:
        super().__init__()
        _check(model)
        self.dimensions, self.activation_checkpointing = model, activation_checkpointing
        self.embedding = nn.Embedding(model.vocab_size, model.hidden_size)
        self.positions = nn.Embedding(model.max_sequence_length, model.hidden_size) if model.learned_positions else None
        self.layers = nn.ModuleList(Block(model, i) for i in range(model.num_layers))
        self.norm = _norm(model)
        self.head = None if model.tied_embeddings else nn.Linear(model.hidden_size, model.vocab_size, bias=False)

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the sum of the losses of (batch, length) tokens, in fp32."""
        x = self.embedding(inputs)
        if self.positions is not None:
            x = x + self.positions(torch.arange(inputs.shape[1], device=inputs.device))
        for layer in self.layers:
            if self.activation_checkpointing == "none" or not torch.is_grad_enabled():
                x = layer(x)
            elif self.activation_checkpointing == "full":
                x = checkpoint(layer, x, use_reentrant=False)
            else:
                x = checkpoint(layer, x, use_reentrant=False, context_fn=_selective)
        x = self.norm(x)
        logits = F.linear(x, self.embedding.weight) if self.head is None else self.head(x)
        return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), reduction="sum")

    def initial_value(self, name: str, parameter: torch.Tensor, device: torch.device, seed: int) -> torch.Tensor:
        """Return the full initial value of a parameter: a function of its name, shape and the seed alone.

        Normal with deviation 0.02, divided by sqrt(2 layers) at the end of each residual branch (GPT-2's recipe).
        """
        if parameter.ndim == 1:
            fill = 0.0 if name.endswith("bias") else 1.0
            return torch.full(parameter.shape, fill, device=device)
        key = int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:7], "big")
        random = torch.Generator(device=device).manual_seed(key)
        residual = name.endswith(("attention.output.weight", "down.weight", "mlp.down"))
        deviation = 0.02 / math.sqrt(2 * self.dimensions.num_layers) if residual else 0.02
        return torch.randn(parameter.shape, generator=random, device=device) * deviation


def _check(model: ModelConfig) -> None:
    """Refuse dimensions that no transformer has."""
    for key in ("num_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size"):
        if getattr(model, key) < 1:
            raise ConfigError(f"model.{key} must be at least 1, not {getattr(model, key)}")
    if model.num_attention_heads % model.num_key_value_heads:
        raise ConfigError(
            f"model.num_attention_heads ({model.num_attention_heads}) must be a multiple of num_key_value_heads"
            f" ({model.num_key_value_heads})"
        )
    if not model.learned_positions and model.head_dim % 2:
        raise ConfigError(f"model.head_dim must be even for rotary positions, not {model.head_dim}")
    if model.learned_positions and model.max_sequence_length < 1:
        raise ConfigError("model.max_sequence_length must be at least 1 for learned positions")
    if model.task_outputs:
        raise ConfigError("model.task_outputs needs a head of its own: replace build_model and build_data in train.py")
    if model.num_experts and model.num_experts_per_token > model.num_experts:
        raise ConfigError(f"model.num_experts_per_token exceeds num_experts ({model.num_experts})")


def _selective() -> Any:
    """Return the contexts that keep the outputs of attention and of every second matrix product, and redo the rest."""
    products = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default}
    kinds = ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")
    names = [f"_scaled_dot_product_{kind}" for kind in kinds]
    attention = {getattr(torch.ops.aten, name).default for name in names if hasattr(torch.ops.aten, name)}
    seen = {False: 0, True: 0}

    def policy(context: Any, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        if operator in attention:
            return CheckpointPolicy.MUST_SAVE
        if operator in products:
            seen[context.is_recompute] += 1
            if seen[context.is_recompute] % 2:
                return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)  # type: ignore[no-untyped-call]


def build(config: TrainConfig) -> nn.Module:
    """Return the model of the configuration.

    A transformer comes without storage (meta device): the engine gives each rank only the part that it holds.
    """
    if config.model.family == "module":
        return ForeignModule(make(config.model.factory)[0])
    if config.sequence_length > config.model.max_sequence_length and config.model.learned_positions:
        raise ConfigError(
            f"sequence_length {config.sequence_length} exceeds the {config.model.max_sequence_length} learned positions"
        )
    with torch.device("meta"):
        model: nn.Module = Transformer(config.model, config.activation_checkpointing)
    if config.method != "full":
        from .lora import add_adapters

        add_adapters(model, config)
    return model
