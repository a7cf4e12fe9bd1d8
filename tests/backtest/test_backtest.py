from __future__ import annotations

from pathlib import Path

import pytest

from stratadvisor.backtest.express import Expressed, device_of, express
from stratadvisor.backtest.rows import Row, read_rows
from stratadvisor.backtest.score import Outcome, Skipped, by_group, by_source, predict, score
from stratadvisor.backtest.truth import measured_step_seconds
from stratadvisor.errors import UsageError

# three published runs: mosaicml/llm-foundry scripts/train/benchmarking/README.md (MPT-7b on 8 A100);
# arXiv:2104.04473, table 1 (18.4 billion parameters on 256 A100); NVIDIA/dgxc-benchmarking llama3.1/README_8b.md
MPT_7B = {
    "id": "mpt",
    "src_key": "llm-foundry",
    "model_name": "MPT-7b",
    "n_layers": "32",
    "hidden": "4096",
    "n_heads": "32",
    "ffn_hidden": "16384",
    "vocab": "50368",
    "seq_len": "2048",
    "gpu_model": "A100-80GB-SXM",
    "n_gpus": "8",
    "gpus_per_node": "8",
    "precision": "bf16",
    "strategy": "fsdp",
    "micro_batch": "6",
    "grad_accum": "2",
    "tokens_per_s_per_gpu": "4641",
}
SC21 = MPT_7B | {
    "id": "sc21",
    "src_key": "sc21",
    "model_name": "GPT-18.4B",
    "n_layers": "40",
    "hidden": "6144",
    "n_heads": "48",
    "ffn_hidden": "24576",
    "vocab": "51200",
    "n_gpus": "256",
    "inter_link": "8x200Gb/s HDR IB",
    "precision": "fp16",
    "strategy": "tp-pp-dp",
    "tp": "8",
    "micro_batch": "8",
    "grad_accum": "",
    "global_batch_sequences": "1024",
    "activation_ckpt": "full",
    "attention": "plain",
    "compiled": "yes",
    "tokens_per_s_per_gpu": "",
    "tflops_per_gpu": "135",
    "tflops_kind": "hardware incl. recompute",
}
LLAMA_8B = MPT_7B | {
    "id": "llama",
    "src_key": "dgxc",
    "model_name": "Llama-3-8B",
    "n_kv_heads": "8",
    "ffn_hidden": "14336",
    "vocab": "128256",
    "seq_len": "8192",
    "gpu_model": "H100-80GB-SXM",
    "strategy": "tp-pp-dp",
    "cp": "2",
    "micro_batch": "1",
    "grad_accum": "32",
    "global_batch_sequences": "128",
    "compiled": "yes",
    "tokens_per_s_per_gpu": "",
    "step_time_s": "12.91",
}


def made(cells: dict[str, str], **changes: str) -> Row:
    return Row(2, cells | changes)


@pytest.mark.parametrize("cells", [MPT_7B, SC21, LLAMA_8B], ids=lambda c: c["id"])
def test_published_runs_are_met_within_a_quarter(cells: dict[str, str]) -> None:
    found = predict(made(cells))
    assert isinstance(found, Outcome)
    assert abs(found.error) < 0.25
    assert found.inside


def test_a_rate_becomes_the_time_of_the_global_batch() -> None:
    # 8 devices x 6 x 2 sequences of 2048 tokens at 4641 tokens/s each
    assert measured_step_seconds(made(MPT_7B), 96, 8) == pytest.approx(96 * 2048 / (4641 * 8))
    assert measured_step_seconds(made(LLAMA_8B), 128, 8) == 12.91


def test_hardware_flops_are_converted_with_the_papers_formula() -> None:
    # arXiv:2104.04473, equation 3, for one sequence
    flops = 96 * 2048 * 40 * 6144**2 * (1 + 2048 / (6 * 6144) + 51200 / (16 * 40 * 6144))
    assert measured_step_seconds(made(SC21), 1024, 256) == pytest.approx(1024 * flops / (135e12 * 256))
    assert measured_step_seconds(made(SC21, tflops_kind="model"), 1024, 256) is None


def test_a_row_becomes_layout_and_cluster() -> None:
    run = express(made(SC21))
    assert isinstance(run, Expressed)
    assert run.layout.tensor_parallel_degree == 8
    assert run.layout.data_parallel_degree == 32
    assert run.layout.gradient_accumulation_steps == 4
    assert run.cluster.classes[0].num_nodes == 32
    assert run.cluster.inter_node_bytes_per_second == 8 * 200e9 / 8
    assert not run.layout.flash_attention


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"quality": "X"}, "doubt"),
        ({"precision": "nvfp4"}, "precision nvfp4"),
        ({"strategy": "magic"}, "strategy magic"),
        ({"gpu_model": "Abacus"}, "no device 'Abacus'"),
        ({"n_layers": ""}, "layers"),
        ({"n_gpus": "many"}, "number of devices"),
        ({"tp": "3"}, "does not divide"),
        ({"micro_batch": "", "grad_accum": ""}, "micro-batch is not stated"),
        ({"global_batch_sequences": "97"}, "global batch"),
        ({"activation_ckpt": "sometimes"}, "checkpointing 'sometimes'"),
        ({"offload": "to-the-moon"}, "offload 'to-the-moon'"),
        ({"method": "dreaming"}, "method 'dreaming'"),
        ({"model_name": "Mixtral (MoE)"}, "experts"),
        ({"tokens_per_s_per_gpu": ""}, "no measured"),
    ],
)
def test_what_cannot_be_predicted_says_why(change: dict[str, str], reason: str) -> None:
    found = predict(made(MPT_7B, **change))
    assert isinstance(found, Skipped)
    assert reason in found.reason


def test_a_power_limit_behind_the_name_is_kept() -> None:
    limited = device_of("H100-96GB-HBM2e-500W")
    assert limited is not None
    assert limited.power_watts == 500
    assert limited.memory_bandwidth_bytes_per_second == 2.4e12


def test_scores_are_the_errors_of_the_group() -> None:
    slow, fast = predict(made(MPT_7B)), predict(made(MPT_7B, tokens_per_s_per_gpu="9282"))
    assert isinstance(slow, Outcome)
    assert isinstance(fast, Outcome)
    both = score("both", [slow, fast])
    assert both.count == 2
    assert fast.error == pytest.approx(2 * (1 + slow.error) - 1)
    assert both.mean_absolute == pytest.approx((abs(slow.error) + abs(fast.error)) / 2)
    assert both.bias == pytest.approx((slow.error + fast.error) / 2)
    assert both.worst == max(slow.error, fast.error, key=abs)
    assert both.coverage == 0.5
    assert [s.group for s in by_group([slow, fast], by_source)] == ["llm-foundry"]


def test_rows_are_read_with_their_line_and_blank_lines_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("\ufeff" + ",".join(MPT_7B) + "\n" + ",".join(MPT_7B.values()) + "\n\n", encoding="utf-8")
    (row,) = read_rows(path)
    assert row.line == 2
    assert row.name == "mpt"
    assert row.number("tokens_per_s_per_gpu") == 4641
    assert row.count("grad_accum") == 2
    assert row.number("precision") is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "lacks the column"),
        ("a,b\n1,2\n", "lacks the columns gpu_model"),
        (",".join(MPT_7B) + "\n", "has no runs"),
    ],
)
def test_a_file_that_holds_no_runs_is_one_sentence(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=problem):
        read_rows(path)


def test_a_missing_or_binary_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        read_rows(tmp_path / "none.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(UsageError, match="not UTF-8"):
        read_rows(tmp_path / "binary.csv")
