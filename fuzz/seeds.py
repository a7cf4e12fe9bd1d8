"""Seeds of the corpus, from what the project itself writes: ``python -m fuzz.seeds``."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Write ``fuzz/corpus/TARGET/seed-...`` for every target that has some."""
    sys.path.insert(0, str(ROOT / "tests"))
    import plan_examples

    from stratadvisor.derive.declared import parse_gpus
    from stratadvisor.store import dump

    golden = ROOT / "tests" / "emit" / "golden"
    mixed = parse_gpus("2x8xA100-80GB,1x4xV100-32GB", inter_node="25Gb/s")
    seeds: dict[str, dict[str, str]] = {
        "profile": {"mixed": dump(mixed), "cpu": dump(plan_examples.profile())},
        "plan": {"ddp": dump(plan_examples.make_plan("ddp", "torchrun"))},
        "cluster_file": {"mixed": _documented_cluster_file()},
        "gpus": {"mixed": "2x8xA100-80GB,1x4xV100-32GB", "one": "RTX-4090"},
        "model_config": {
            "llama": '{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,'
            ' "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 256}',
            "gpt2": '{"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 256}',
        },
        "rule_file": {p.stem: p.read_text() for p in sorted((ROOT / "rules").glob("*.toml"))[:4]},
        "runs_csv": {
            "two": "gpu_model,n_gpus,strategy,seq_len,n_layers,hidden,n_heads,micro_batch,precision,step_time_s\n"
            "A100-80GB-SXM,8,fsdp,2048,32,4096,32,2,bf16,1.5\nV100-32GB,8,tp-pp-dp,2048,24,2048,16,1,fp16,3\n"
        },
        "deepspeed_json": {p.parent.name: p.read_text() for p in sorted(golden.glob("*/ds_config.json"))},
        "accelerate_yaml": {"one": "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\nmixed_precision: bf16\n"},
        "train_config": {p.parent.name: p.read_text() for p in sorted(golden.glob("*/train_config.json"))[:3]},
        "hosts": {"range": "node[01-16],gpu[1,3-5]", "one": "user@host:2222"},
        "quantity": {"rate": "25Gb/s", "size": "80 GiB", "time": "5ms", "number": "1e309"},
        "screen": {"escape": "\x1b]0;title\x07\x1b[31m \u202e \x9b"},
    }
    for target, texts in seeds.items():
        folder = ROOT / "fuzz" / "corpus" / target
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / f"seed-{name}").write_text(text)


def _documented_cluster_file() -> str:
    text = (ROOT / "docs" / "cluster-file.md").read_text()
    return text.split("```toml\n")[1].split("```")[0]


if __name__ == "__main__":
    main()
