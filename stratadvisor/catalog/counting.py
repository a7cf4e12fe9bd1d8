"""Parameters of a transformer, from its dimensions: exact, biases and norms included."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """All that decides how many parameters a transformer has. Sizes in elements."""

    hidden_size: int
    num_layers: int
    num_heads: int
    num_key_value_heads: int
    head_dim: int
    ffn_size: int
    """Width of the MLP, of one expert when there are experts."""
    vocab_size: int
    gated: bool = True
    tied: bool = False
    embedding_width: int = 0
    """Width of the token embedding where it differs from hidden_size (OPT-350M projects); 0: the same."""
    query_key_value_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    norm_parameters: int = 0
    """Of one norm: hidden_size, twice that with a bias, 0 without weights."""
    norms_per_layer: int = 2
    final_norms: int = 1
    layer_extra: int = 0
    """Per layer: query and key norms, attention sinks."""
    embedding_extra: int = 0
    """Positions, token types, embedding norm, patches."""
    head_extra: int = 0
    """Bias of the output layer, transform of a masked language model, classifier."""
    num_experts: int = 0
    experts_per_token: int = 0
    shared_size: int = 0
    """Width of all shared experts together."""
    shared_gate: bool = False
    router_bias: bool = False
    num_dense_layers: int = 0
    dense_ffn_size: int = 0


def attention_parameters(plan: Blueprint) -> int:
    """Return the parameters of the four projections of one layer."""
    queries, keys = plan.num_heads * plan.head_dim, plan.num_key_value_heads * plan.head_dim
    weights = plan.hidden_size * (2 * queries + 2 * keys)
    biases = (queries + 2 * keys) * plan.query_key_value_bias + plan.hidden_size * plan.output_bias
    return weights + biases


def mlp_parameters(plan: Blueprint, width: int) -> int:
    """Return the parameters of an MLP (or one expert) of the given width."""
    inputs = 2 if plan.gated else 1
    return (inputs + 1) * plan.hidden_size * width + (inputs * width + plan.hidden_size) * plan.mlp_bias


def count(plan: Blueprint) -> tuple[int, int]:
    """Return (all parameters, those that one token passes through); tied matrices once.

    Every embedding row counts as active, as model cards count.
    """
    width = plan.embedding_width or plan.hidden_size
    embedding = plan.vocab_size * width * (1 if plan.tied else 2) + plan.embedding_extra + plan.head_extra
    if width != plan.hidden_size:
        embedding += 2 * width * plan.hidden_size
    common = attention_parameters(plan) + plan.norms_per_layer * plan.norm_parameters + plan.layer_extra
    total = embedding + plan.num_layers * common + plan.final_norms * plan.norm_parameters
    if not plan.num_experts:
        total += plan.num_layers * mlp_parameters(plan, plan.ffn_size)
        return total, total
    mixture_layers = plan.num_layers - plan.num_dense_layers
    expert = mlp_parameters(plan, plan.ffn_size)
    router = (plan.hidden_size + plan.router_bias) * plan.num_experts
    shared = mlp_parameters(plan, plan.shared_size) + plan.hidden_size * plan.shared_gate if plan.shared_size else 0
    total += plan.num_dense_layers * mlp_parameters(plan, plan.dense_ffn_size)
    total += mixture_layers * (plan.num_experts * expert + router + shared)
    return total, total - mixture_layers * (plan.num_experts - plan.experts_per_token) * expert
