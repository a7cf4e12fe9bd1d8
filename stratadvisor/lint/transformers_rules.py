"""Hugging Face TrainingArguments in a file, with a DeepSpeed section or an fsdp_config inside."""

from __future__ import annotations

from stratadvisor.lint.deepspeed_rules import check_deepspeed
from stratadvisor.lint.key_rules import report_change
from stratadvisor.lint.known import changes, known
from stratadvisor.lint.subject import AUTO, Subject, meant, nearest, number, shown, whole

OTHER_CLASSES = frozenset(
    {
        "model_name_or_path",
        "tokenizer_name",
        "dataset_name",
        "dataset_config_name",
        "train_file",
        "validation_file",
        "dataset",
        "data_path",
        "max_seq_length",
        "finetuning_type",
        "dataset_mixture",
        "chat_template",
        "model_id",
    }
)
"""Arguments of the example scripts' other dataclasses: such a file is read by several of them."""
MIXED_SHARE, TYPO = 0.25, 0.9
"""A file with more unknown keys than this share is read by several classes; there only what is this close to a known
key is reported."""
FSDP1_ONLY = ("backward_prefetch", "forward_prefetch", "use_orig_params", "sync_module_states", "limit_all_gathers")
FSDP_WORDS = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2", "offload", "auto_wrap")
MATCHES = (
    (("train_micro_batch_size_per_gpu",), "per_device_train_batch_size", 8),
    (("gradient_accumulation_steps",), "gradient_accumulation_steps", 1),
    (("gradient_clipping",), "max_grad_norm", 1.0),
    (("optimizer", "params", "lr"), "learning_rate", 5e-5),
    (("optimizer", "params", "eps"), "adam_epsilon", 1e-8),
    (("optimizer", "params", "weight_decay"), "weight_decay", 0.0),
    (("scheduler", "params", "warmup_max_lr"), "learning_rate", 5e-5),
    (("fp16", "enabled"), "fp16", False),
    (("bf16", "enabled"), "bf16", False),
)
"""Place in the DeepSpeed section, argument that must equal it, the argument's default (transformers 5.24.0)."""


def check_transformers(subject: Subject) -> None:
    """Run every rule on TrainingArguments."""
    _keys(subject)
    _values(subject)
    _combinations(subject)
    _fsdp(subject)
    deepspeed = subject.data.get("deepspeed")
    inner = subject.inner("deepspeed") if isinstance(deepspeed, dict) else subject.named(deepspeed)
    if inner is not None:
        inner.loader = "transformers"
        check_deepspeed(inner)
        _matches(subject, inner)


def _keys(subject: Subject) -> None:
    sections = known("transformers").sections
    keys = sections[""] | sections["sequence_to_sequence"]
    table = changes("transformers")
    unknown = [key for key in subject.data if key not in keys and str(key) not in table]
    mixed = bool(OTHER_CLASSES & set(subject.data)) or len(unknown) > max(3, len(subject.data) * MIXED_SHARE)
    for key in subject.data:
        if str(key) in table:
            report_change(subject, "transformers", (str(key),), table[str(key)])
    for key in unknown:
        if not mixed:
            subject.report("HF101", (str(key),), f"{shown(key)} is no argument of TrainingArguments", meant(key, keys))
        elif close := nearest(key, keys, cutoff=TYPO):
            message = f"{shown(key)} is no argument of TrainingArguments; another class of your script may have it"
            subject.report("HF101", (str(key),), message, f"{close}, if that was meant", severity="warning")
    for name, unprefixed in (("fsdp_config", "fsdp_"), ("accelerator_config", "")):
        for key in subject.section(name):
            if str(key).removeprefix(unprefixed) not in sections[name]:
                subject.report(
                    "HF104",
                    (name, str(key)),
                    f"{shown(key)} is no key of {name}: nothing reads it",
                    meant(key, sections[name]),
                )


def _values(subject: Subject) -> None:
    types, choices = known("transformers").types, known("transformers").choices
    for key, value in subject.data.items():
        if types.get(str(key)) == "number" and isinstance(value, str) and _is_number(value):
            subject.report(
                "GEN102",
                (str(key),),
                f"{key} is the text {value!r}: YAML needs a dot and a sign to read a number with an exponent",
                f"{key}: {_with_dot(value)}",
            )
        if str(key) in choices and value is not None:
            text = "no" if value is False else str(value).lower()  # YAML reads a bare no as false
            if text not in choices[str(key)]:
                near = nearest(text, choices[str(key)])
                fix = near or "one of " + ", ".join(choices[str(key)][:8])
                subject.report("HF105", (str(key),), f"{key} is {shown(value)}", fix)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _with_dot(text: str) -> str:
    mantissa, _, exponent = text.lower().partition("e")
    mantissa = mantissa if "." in mantissa else f"{mantissa}.0"
    return f"{mantissa}e{exponent if exponent[:1] in '+-' else '+' + exponent}" if exponent else mantissa


def _combinations(subject: Subject) -> None:
    data = subject.data
    for one, other in (("fp16", "bf16"), ("fp16_full_eval", "bf16_full_eval")):
        if data.get(one) is True and data.get(other) is True:
            subject.report("HF201", (other,), f"{one} and {other} are both true", "keep one")
    if data.get("dataloader_prefetch_factor") is not None and not data.get("dataloader_num_workers"):
        subject.report(
            "HF202", ("dataloader_prefetch_factor",), "a prefetch factor needs workers", "dataloader_num_workers: 4"
        )
    for key in ("per_device_train_batch_size", "gradient_accumulation_steps", "per_device_eval_batch_size"):
        if key in data and number(data[key]) is not None and (whole(data[key]) or 0) < 1:
            subject.report("HF204", (key,), f"{key} is {shown(data[key])}", "a whole number from 1")
    if data.get("fsdp") and data.get("deepspeed"):
        subject.report("HF205", ("fsdp",), "fsdp and deepspeed both want to wrap the model", "keep one")
    evaluate = _strategy(data.get("eval_strategy", "no"))
    save = _strategy(data.get("save_strategy", "steps"))
    if data.get("load_best_model_at_end") is True and save not in ("best", evaluate):
        subject.report(
            "HF203",
            ("load_best_model_at_end",),
            f"load_best_model_at_end with eval_strategy {evaluate} and save_strategy {save}",
            f"eval_strategy: {save}, or save_strategy: best",
        )
    if _strategy(data.get("logging_strategy", "steps")) == "steps" and data.get("logging_steps", 500) == 0:
        subject.report(
            "HF210", ("logging_steps",), "logging_strategy is steps, and logging_steps 0", "logging_strategy: 'no'"
        )


def _strategy(value: object) -> str:
    return "no" if value is False else str(value).lower()


def _fsdp(subject: Subject) -> None:
    wanted = subject.data.get("fsdp")
    section = subject.section("fsdp_config")
    plain = {str(key).removeprefix("fsdp_"): value for key, value in section.items()}
    version = whole(plain.get("version", 2))
    if not wanted:
        if section:
            subject.report("HF212", ("fsdp_config",), "fsdp is not set: fsdp_config is not read", "fsdp: true")
        return
    if isinstance(wanted, (str, list)):
        words = wanted.split() if isinstance(wanted, str) else [str(word) for word in wanted]
        subject.report(
            "HF206", ("fsdp",), "fsdp as a text is deprecated", "fsdp: true, with fsdp_config", since="transformers 5"
        )
        for word in words:
            if word not in FSDP_WORDS:
                subject.report("HF211", ("fsdp",), f"there is no fsdp option {shown(word)}", meant(word, FSDP_WORDS))
            elif version == 2 and word in ("no_shard", "hybrid_shard", "hybrid_shard_zero2"):
                subject.report(
                    "HF211", ("fsdp",), f"{word} is FSDP1's, and version 2 is the default", "fsdp_config: {version: 1}"
                )
    if version == 2:
        for key in FSDP1_ONLY:
            if key in plain:
                name = key if key in section else f"fsdp_{key}"
                subject.report(
                    "HF207",
                    ("fsdp_config", name),
                    f"{key} is FSDP1's; version 2, the default, does not read it",
                    "delete it",
                )
    for key in ("activation_checkpointing", "gradient_checkpointing"):
        if subject.data.get(key) is True:
            subject.report(
                "HF208",
                (key,),
                f"{key} under FSDP gathers once more in the backward pass",
                "fsdp_config: {activation_checkpointing: true}",
            )


def _matches(subject: Subject, inner: Subject) -> None:
    for place, argument, default in MATCHES:
        there = inner.at(*place)
        here = subject.data.get(argument, default)
        if there is None or there in (AUTO, here) or isinstance(here, str):
            continue
        given = "" if argument in subject.data else " (its default)"
        inner.report(
            "HF209",
            place,
            f"{place[-1]} is {shown(there)} here and {argument} is {shown(here)}{given}: the Trainer refuses that",
            f'"auto", which takes {argument}',
        )
    total = whole(inner.at("train_batch_size"))
    if total is not None and subject.world_size is not None:
        micro = whole(subject.data.get("per_device_train_batch_size", 8)) or 1
        steps = whole(subject.data.get("gradient_accumulation_steps", 1)) or 1
        if total != micro * steps * subject.world_size:
            inner.report(
                "HF209",
                ("train_batch_size",),
                f"train_batch_size {total} is not {micro} x {steps} x {subject.world_size} ranks",
                '"auto"',
            )
