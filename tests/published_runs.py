"""Published runs as rows of a CSV file, each with its source; a small excerpt for tests."""

from __future__ import annotations

import csv
import io

_LLAMA_2_7B = {
    "model_name": "Llama-2-7B",
    "n_layers": "32",
    "hidden": "4096",
    "n_heads": "32",
    "ffn_hidden": "11008",
    "vocab": "32000",
    "seq_len": "2048",
    "precision": "bf16",
}
# AnswerDotAI/fsdp_qlora benchmarks_03_2024.md, two RTX 4090: seconds for 1024 samples, peak reserved memory of a card
_FSDP_QLORA = _LLAMA_2_7B | {
    "source": "AnswerDotAI/fsdp_qlora benchmarks_03_2024.md",
    "src_key": "fsdp-qlora",
    "gpu_model": "RTX-4090-24GB",
    "n_gpus": "2",
    "intra_link": "PCIe4 x16 (no NVLink)",
    "activation_ckpt": "full",
    "mem_kind": "peak reserved",
}
PUBLISHED = (
    _FSDP_QLORA
    | {"id": "lora ddp", "strategy": "ddp", "method": "lora", "micro_batch": "4", "global_batch_sequences": "8"}
    | {"step_time_s": "3.4141"},
    _FSDP_QLORA
    | {"id": "lora fsdp", "strategy": "fsdp", "method": "lora", "micro_batch": "6", "global_batch_sequences": "12"}
    | {"step_time_s": "5.6367", "peak_mem_gib": "21.4"},
    # NVIDIA/dgxc-benchmarking llama3.1/README_8b.md (NeMo 24.09): 8 H100, global batch 128
    {
        "id": "llama 3 8b",
        "source": "NVIDIA/dgxc-benchmarking llama3.1/README_8b.md",
        "src_key": "dgxc",
        "model_name": "Llama-3-8B",
        "n_layers": "32",
        "hidden": "4096",
        "n_heads": "32",
        "n_kv_heads": "8",
        "ffn_hidden": "14336",
        "vocab": "128256",
        "seq_len": "8192",
        "gpu_model": "H100-80GB-SXM",
        "n_gpus": "8",
        "precision": "bf16",
        "strategy": "tp-pp-dp",
        "cp": "2",
        "micro_batch": "1",
        "global_batch_sequences": "128",
        "step_time_s": "12.91",
    },
    {"id": "four bits", "gpu_model": "H100-80GB-SXM", "n_gpus": "8", "strategy": "fsdp", "precision": "nvfp4"}
    | {"step_time_s": "1", "seq_len": "8192", "n_layers": "32", "hidden": "4096", "n_heads": "32"},
)


def as_csv(rows: tuple[dict[str, str], ...] = PUBLISHED) -> str:
    """Return the rows as a file's text."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
