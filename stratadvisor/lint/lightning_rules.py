"""Arguments of Lightning's Trainer, flat or as the ``trainer`` section of a LightningCLI file."""

from __future__ import annotations

from typing import Any

from stratadvisor.lint.deepspeed_rules import check_deepspeed
from stratadvisor.lint.key_rules import check_section
from stratadvisor.lint.known import known
from stratadvisor.lint.subject import Subject, meant, nearest, number, shown, whole

SUBCOMMANDS = ("fit", "validate", "test", "predict")
GONE_STRATEGIES = {
    "dp": ("ddp", "2.0"),
    "ddp2": ("ddp", "1.7"),
    "horovod": ("ddp", "2.0"),
    "bagua": ("ddp", "2.0"),
    "ddp_sharded": ("fsdp or deepspeed_stage_2", "2.0"),
    "ddp_sharded_spawn": ("fsdp or deepspeed_stage_2", "2.0"),
    "ddp_fully_sharded": ("fsdp", "2.0"),
    "fairscale": ("fsdp", "2.0"),
    "fsdp_native": ("fsdp", "2.0"),
    "colossalai": ("deepspeed or fsdp", "2.0"),
    "hivemind": ("ddp", "2.0"),
    "tpu_spawn": ("xla", "2.0"),
}
HYDRA = frozenset({"_target_", "_partial_", "_convert_", "_recursive_"})
"""Hydra's own keys, in files that build a Trainer with it."""
SHORT = {"16": "16-mixed", "bf16": "bf16-mixed", "32": "32-true", "64": "64-true"}
BAREBONES = {
    "enable_checkpointing": (None, False),
    "logger": (None, False),
    "enable_progress_bar": (None, False),
    "log_every_n_steps": (None, 0),
    "enable_model_summary": (None, False),
    "num_sanity_val_steps": (None, 0),
    "fast_dev_run": (None, False, 0),
    "detect_anomaly": (None, False),
    "profiler": (None,),
}


def trainer_path(data: dict[Any, Any]) -> tuple[str, ...]:
    """Return where the Trainer's arguments lie."""
    if isinstance(data.get("trainer"), dict):
        return ("trainer",)
    for command in SUBCOMMANDS:
        if isinstance(data.get(command), dict) and isinstance(data[command].get("trainer"), dict):
            return (command, "trainer")
    return ()


def check_lightning(subject: Subject) -> None:
    """Run every rule on Trainer arguments."""
    path = trainer_path(subject.data)
    part = subject.inner(*path) if path else subject
    check_section(
        part, "lightning", (), section="", code="PL101", what="is no argument of Trainer: TypeError", also=HYDRA
    )
    name = _strategy(part)
    accelerator = part.data.get("accelerator", "auto")
    if isinstance(accelerator, str) and accelerator not in (*known("lightning").choices["accelerator"], "auto", "gpu"):
        near = nearest(accelerator, known("lightning").choices["accelerator"])
        part.report(
            "PL202", ("accelerator",), f"there is no accelerator {shown(accelerator)}", near or "auto, gpu or cpu"
        )
    if "fsdp" in name and accelerator not in ("cuda", "gpu"):
        part.report(
            "PL205", ("accelerator",), f"FSDP with accelerator {shown(accelerator)}: ValueError", "accelerator: gpu"
        )
    _precision(part, accelerator)
    _numbers(part, name)
    if part.data.get("barebones") is True:
        for key, allowed in BAREBONES.items():
            if key in part.data and part.data[key] not in allowed:
                part.report(
                    "PL209", (key,), f"{key} is {shown(part.data[key])}, which barebones forbids", "delete one of them"
                )


def _strategy(part: Subject) -> str:
    """Check the strategy and return its name in lower case."""
    strategy = part.data.get("strategy", "auto")
    if isinstance(strategy, dict):
        return _strategy_class(part, strategy)
    if strategy is None:
        part.report("PL201", ("strategy",), "strategy is null", "auto", since="lightning 2.0")
        return ""
    name = str(strategy).lower()
    registered = known("lightning").choices["strategy"]
    if name in ("auto", *registered):
        if name == "single_device" and (whole(part.data.get("devices", 1)) or 1) > 1:
            part.report("PL211", ("strategy",), f"single_device with {shown(part.data['devices'])} devices", "ddp")
        return name
    if _is_class(strategy, known("lightning").sections):
        return name.rpartition(".")[2].removesuffix("strategy")  # the short form that jsonargparse accepts
    fix, since = GONE_STRATEGIES.get(name, ("", ""))
    part.report(
        "PL201",
        ("strategy",),
        f"strategy {shown(strategy)} is not registered" + (f" any more, since lightning {since}" if since else ""),
        fix or nearest(name, registered) or "auto, ddp, fsdp or deepspeed_stage_2",
        since=f"lightning {since}" if since else "",
    )
    return name


def _is_class(strategy: object, sections: dict[str, frozenset[str]]) -> bool:
    return str(strategy).rpartition(".")[2] in sections


def _strategy_class(part: Subject, strategy: dict[Any, Any]) -> str:
    name = str(strategy.get("class_path", "")).rpartition(".")[2]
    keys = known("lightning").sections.get(name)
    arguments = strategy.get("init_args")
    if keys is not None and isinstance(arguments, dict):
        for key in arguments:
            if key not in keys:
                part.report(
                    "PL104",
                    ("strategy", "init_args", str(key)),
                    f"{shown(key)} is no argument of {name}",
                    meant(key, keys),
                )
        if name == "DeepSpeedStrategy" and isinstance(arguments.get("config"), dict):
            inner = part.inner("strategy", "init_args", "config")
            inner.loader = "lightning"
            check_deepspeed(inner)
    return name.lower().removesuffix("strategy")


def _precision(part: Subject, accelerator: object) -> None:
    precision = part.data.get("precision")
    if precision is None:
        return
    text = str(precision)
    if isinstance(precision, bool) or text not in known("lightning").choices["precision"]:
        near = nearest(text, known("lightning").choices["precision"])
        fix = (
            "bf16-mixed" if "bf" in text else "16-mixed" if "16" in text else near or "bf16-mixed, 16-mixed or 32-true"
        )
        part.report("PL203", ("precision",), f"there is no precision {shown(precision)}", fix)
        return
    if text in SHORT and text not in ("32", "64"):
        part.report(
            "PL206", ("precision",), f"precision {text} is short for {SHORT[text]}", SHORT[text], since="lightning 2.0"
        )
    if SHORT.get(text, text) == "16-mixed" and accelerator == "cpu":
        part.report("PL204", ("precision",), "16-mixed on a CPU: Lightning uses bf16-mixed instead", "bf16-mixed")


def _numbers(part: Subject, strategy: str) -> None:
    steps = part.data.get("accumulate_grad_batches")
    if steps is not None and (whole(steps) or 0) < 1:
        fix = "the GradientAccumulationScheduler callback" if isinstance(steps, dict) else "a whole number from 1"
        part.report(
            "PL207",
            ("accumulate_grad_batches",),
            f"accumulate_grad_batches is {shown(steps)}",
            fix,
            since="lightning 2.0",
        )
    algorithm = part.data.get("gradient_clip_algorithm")
    if algorithm is not None and str(algorithm).lower() not in known("lightning").choices["gradient_clip_algorithm"]:
        part.report(
            "PL208", ("gradient_clip_algorithm",), f"gradient_clip_algorithm is {shown(algorithm)}", "norm or value"
        )
    clipping = number(part.data.get("gradient_clip_val")) or 0.0
    if clipping > 0 and "deepspeed" in strategy and str(algorithm).lower() == "value":
        part.report("PL210", ("gradient_clip_algorithm",), "DeepSpeed does not clip by value", "norm")
    if clipping > 0 and strategy.startswith("fsdp") and str(algorithm or "norm").lower() == "norm":
        part.report(
            "PL210",
            ("gradient_clip_val",),
            "FSDPStrategy refuses clipping by norm (the norm of a shard is not that of the model)",
            "override configure_gradient_clipping and call clip_grad_norm_ of the wrapped module",
        )
