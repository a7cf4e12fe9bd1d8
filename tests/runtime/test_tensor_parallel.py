"""Tensor parallelism times FSDP2 over gloo: two and four ranks equal one process, step by step, also after resuming."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from runtime_bundle import TINY, configuration, events, finish, group, losses, make_config

from stratadvisor.runtime import data, model
from stratadvisor.runtime.config import ConfigError, parse
from stratadvisor.runtime.program import main

STEPS = 20
ROUNDING = 1e-4
"""Losses are near 5; fp32 sums in another order differ by far less."""
GPT = TINY | {
    "num_key_value_heads": 4,
    "gated_mlp": False,
    "mlp_bias": True,
    "attention_bias": True,
    "norm_bias": True,
    "learned_positions": True,
    "tied_embeddings": True,
}
"""Biases, learned positions, LayerNorm and a tied embedding, where TINY has none of them."""
MODELS = {"llama": TINY, "gpt": GPT}
TWO = group(micro_batch_size=2, gradient_accumulation_steps=4, batch_per_device=8)
FOUR = group(devices_per_node=4, micro_batch_size=2, gradient_accumulation_steps=2, batch_per_device=4)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    """Losses of one process with the whole batch of eight sequences."""
    whole = group(devices_per_node=1, micro_batch_size=8, gradient_accumulation_steps=1, batch_per_device=8)
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "STRATADVISOR_STEPS", "STRATADVISOR_RUN_DIR"):
            patch.delenv(name, raising=False)
        for name, shape in MODELS.items():
            folder = tmp_path_factory.mktemp(name) / "bundle"
            bundle = make_config(folder, engine="single", groups=[whole], model=shape)
            assert main(model.build, data.token_dataset, bundle, ["--steps", str(STEPS)]) == 0
            found[name] = losses(bundle)
    return found


def start(folder: Path, ranks: int, jobs: list[tuple[str, list[str]]]) -> None:
    """Run jobs (bundle, arguments) one after the other in the same ranks."""
    file = folder / f"jobs-{ranks}.json"
    file.write_text(json.dumps([{"bundle": str(folder / b), "arguments": a, "forget": None} for b, a in jobs]))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    finish([*launcher, str(Path(__file__).resolve().parents[1] / "runtime_several.py"), str(file)])


def bundle(folder: Path, name: str, **changes: Any) -> None:
    make_config(folder / name, engine="tp_fsdp2", tensor_parallel_degree=2, **changes)


@pytest.mark.process
def test_two_ranks_that_share_each_layer_equal_one_process(alone: dict[str, list[float]], tmp_path: Path) -> None:
    bundle(tmp_path, "llama", groups=[TWO])
    bundle(tmp_path, "gpt", groups=[TWO], model=GPT, activation_checkpointing="full")
    whole = ["--steps", str(STEPS)]
    start(tmp_path, 2, [("llama", whole), ("gpt", whole)])
    for name, expected in alone.items():
        assert losses(tmp_path / name) == pytest.approx(expected, abs=ROUNDING)
        assert expected[-1] < expected[0] - 0.5
        # both ranks took the same 8 sequences of 32 tokens: they count once
        assert {event["tokens"] for event in events(tmp_path / name)} == {8 * 32}


@pytest.mark.process
def test_four_ranks_equal_one_process_and_resume_exactly(alone: dict[str, list[float]], tmp_path: Path) -> None:
    bundle(tmp_path, "llama", groups=[FOUR], shard_degree=2, activation_checkpointing="selective")
    bundle(tmp_path, "gpt", groups=[FOUR], shard_degree=1, replicate_degree=2, model=GPT)
    whole = ["--steps", str(STEPS)]
    start(tmp_path, 4, [("llama", ["--steps", "12"]), ("llama", [*whole, "--resume"]), ("gpt", whole)])
    for name, expected in alone.items():
        assert [event["step"] for event in events(tmp_path / name)] == list(range(1, STEPS + 1))
        assert losses(tmp_path / name) == pytest.approx(expected, abs=ROUNDING)


def test_shares_of_ranks_that_take_the_same_samples_count_once() -> None:
    document = configuration(engine="tp_fsdp2", tensor_parallel_degree=2, groups=[FOUR], global_batch_size=8)
    assert parse(document).tensor_parallel_degree == 2  # 4 ranks of 4 sequences, two at a time
    with pytest.raises(ConfigError, match="global_batch_size is 16, but the shares of the groups sum to 8"):
        parse(document | {"global_batch_size": 16})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"engine": "fsdp2"}, "needs the engine tp_fsdp2, not fsdp2"),
        ({"groups": [group(devices_per_node=3)]}, "must be a multiple of tensor_parallel_degree"),
        ({"tensor_parallel_degree": 0}, "tensor_parallel_degree must be at least 1"),
    ],
)
def test_a_degree_that_does_not_fit_is_refused_in_one_sentence(changes: dict[str, Any], said: str) -> None:
    document = configuration(engine="tp_fsdp2", tensor_parallel_degree=2) | changes
    with pytest.raises(ConfigError, match=said):
        parse(document)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_key_value_heads": 1}, r"does not divide model.num_key_value_heads \(1\)"),
        ({"vocab_size": 255}, r"does not divide model.vocab_size \(255\)"),
        ({"num_experts": 4, "num_experts_per_token": 2}, "of experts is not supported by this runtime: use fsdp2"),
    ],
)
def test_a_model_that_cannot_be_divided_is_refused_in_one_sentence(changes: dict[str, Any], said: str) -> None:
    from stratadvisor.runtime.tensor_parallel import check

    config = parse(configuration(engine="tp_fsdp2", tensor_parallel_degree=2, model=TINY | changes))
    with pytest.raises(ConfigError, match=said):
        check(model.build(config), config, world_size=2)
    whole = parse(configuration(engine="tp_fsdp2", tensor_parallel_degree=2))
    check(model.build(whole), whole, world_size=2)
