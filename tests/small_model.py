"""A model small enough for its terms to be added up by hand, shared by the tests of memory."""

from __future__ import annotations

from stratadvisor.schema.workload import ModelShape

# 8 query heads of 16 over a residual stream of 128, 4 key heads, an MLP of 320
SMALL = ModelShape(
    name="small",
    source="made for tests",
    num_parameters=10_000_000,
    num_active_parameters=10_000_000,
    num_layers=4,
    hidden_size=128,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=16,
    ffn_hidden_size=320,
    vocab_size=1000,
)
