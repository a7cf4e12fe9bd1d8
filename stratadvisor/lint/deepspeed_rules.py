"""A DeepSpeed configuration: keys, precision, optimizer, schedule."""

from __future__ import annotations

from typing import Any

from stratadvisor.lint.auto import check_auto
from stratadvisor.lint.batch import check_batch
from stratadvisor.lint.key_rules import check_section, report_change
from stratadvisor.lint.known import changes, known
from stratadvisor.lint.subject import AUTO, Subject, enabled, nearest, number, shown, whole
from stratadvisor.lint.zero_rules import check_zero

SECTIONS_MUST_BE_MAPPINGS = (
    "fp16",
    "bf16",
    "optimizer",
    "scheduler",
    "activation_checkpointing",
    "aio",
    "checkpoint",
    "data_types",
    "flops_profiler",
    "comms_logger",
    "tensorboard",
    "wandb",
    "csv_monitor",
    "compile",
    "tensor_parallel",
    "torch_autocast",
)
DTYPES = ("fp32", "fp16", "bf16")
ONE_BIT = ("onebitadam", "onebitlamb", "zerooneadam")
LR_NEEDS = {
    "WarmupDecayLR": ("total_num_steps",),
    "WarmupCosineLR": ("total_num_steps",),
    "OneCycle": ("cycle_min_lr", "cycle_max_lr"),
}
_LOSS_KEYS = ("loss_scale", "loss_scale_window", "hysteresis", "min_loss_scale", "initial_scale_power")


def check_deepspeed(subject: Subject) -> None:
    """Run every rule on a DeepSpeed configuration."""
    _keys(subject)
    check_auto(subject)
    check_batch(subject)
    check_zero(subject)
    _precision(subject)
    _optimizer(subject)
    _schedule(subject)
    _rest(subject)


def _keys(subject: Subject) -> None:
    keys = known("deepspeed")
    check_section(
        subject, "deepspeed", (), section="", code="DS101", what="is no key of DeepSpeed: it is silently ignored"
    )
    for section in keys.sections:
        path = tuple(section.split(".")) if section else ()
        if not section or not isinstance(subject.at(*path), dict):
            continue
        strict = section in keys.strict_sections
        what = f"is no key of {section}: DeepSpeed {'refuses it' if strict else 'silently ignores it'}"
        check_section(subject, "deepspeed", path, section=section, code="DS102" if strict else "DS103", what=what)
    for name in SECTIONS_MUST_BE_MAPPINGS:
        value = subject.data.get(name)
        if name in subject.data and not isinstance(value, dict) and not (name == "aio" and value is None):
            subject.report("DS114", (name,), f"{name} is {shown(value)}, not a section", f'"{name}": {{...}}')


def _precision(subject: Subject) -> None:
    fp16, bf16 = subject.section("fp16"), subject.section("bf16") or subject.section("bfloat16")
    if enabled(fp16) and enabled(bf16):
        subject.report("DS301", ("bf16", "enabled"), "fp16 and bf16 are both enabled", "disable one of them")
    scale = fp16.get("loss_scale")
    if scale is not None and scale != AUTO and (number(scale) is None or (number(scale) or 0.0) < 0):
        subject.report(
            "DS302",
            ("fp16", "loss_scale"),
            f"loss_scale is {shown(scale)}",
            "0 for a dynamic scale, or a positive number",
        )
    if enabled(fp16) and not (number(scale) or 0.0):
        for key in ("loss_scale_window", "min_loss_scale"):
            value = fp16.get(key)
            if value is not None and value != AUTO and (number(value) is None or (number(value) or 0.0) <= 0):
                subject.report(
                    "DS302",
                    ("fp16", key),
                    f"{key} is {shown(value)} with a dynamic loss scale",
                    "a whole number from 1",
                )
    if fp16.get("enabled") is False and enabled(bf16) and any(key in fp16 for key in _LOSS_KEYS[:1]) and number(scale):
        subject.report(
            "DS305",
            ("fp16", "loss_scale"),
            "a loss scale is set, but fp16 is off: bf16 needs and uses none",
            "delete it",
        )
    _masters(subject, bf16)
    _dtypes(subject, fp16, bf16)


def _masters(subject: Subject, bf16: dict[Any, Any]) -> None:
    stage = whole(subject.at("zero_optimization", "stage")) or 0
    for section, key in (("fp16", "fp16_master_weights_and_grads"), ("bf16", "bf16_master_weights_and_grads")):
        if subject.at(section, key) is True and stage == 0:
            subject.report(
                "DS303", (section, key), f"{key} is for ZeRO stages 1, 2 and 3", "a ZeRO stage, or delete it"
            )
    if bf16.get("bf16_optimizer_states") is True and (
        stage == 0 or bf16.get("bf16_master_weights_and_grads") is not True
    ):
        subject.report(
            "DS303",
            ("bf16", "bf16_optimizer_states"),
            "bf16_optimizer_states needs bf16_master_weights_and_grads and ZeRO",
            "bf16_master_weights_and_grads: true with a ZeRO stage",
        )


def _dtypes(subject: Subject, fp16: dict[Any, Any], bf16: dict[Any, Any]) -> None:
    wanted = subject.at("data_types", "param_dtype")
    if isinstance(wanted, str) and fp16.get("enabled") != AUTO and bf16.get("enabled") != AUTO:
        have = "fp16" if enabled(fp16) else "bf16" if enabled(bf16) else "fp32"
        if _dtype(wanted) not in (have, None):
            subject.report(
                "DS304", ("data_types", "param_dtype"), f"param_dtype {wanted}, but the model is in {have}", "delete it"
            )
    for path in (
        ("communication_data_type",),
        ("seq_parallel_communication_data_type",),
        ("data_types", "grad_accum_dtype"),
    ):
        value = subject.at(*path)
        if value is not None and (not isinstance(value, str) or _dtype(value) is None) and value != AUTO:
            subject.report("DS115", path, f"{path[-1]} is {shown(value)}", "one of " + ", ".join(DTYPES))


def _dtype(text: str) -> str | None:
    names = {"float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32", "bfloat16": "bf16"}
    short = text.lower().removeprefix("torch.")
    short = names.get(short, short)
    return short if short in DTYPES else None


def _optimizer(subject: Subject) -> None:
    section = subject.section("optimizer")
    stage = whole(subject.at("zero_optimization", "stage")) or 0
    offload = subject.at("zero_optimization", "offload_optimizer", "device") in ("cpu", "nvme")
    if not section:
        if offload and subject.data.get("zero_force_ds_cpu_optimizer") is not False:
            subject.report(
                "DS503",
                ("zero_optimization", "offload_optimizer"),
                "there is no optimizer section: with offload your script's optimizer has to be DeepSpeedCPUAdam",
                '"zero_force_ds_cpu_optimizer": false allows any other, on the CPU and slowly',
            )
        return
    name = section.get("type")
    if not isinstance(name, str):
        subject.report("DS114", ("optimizer", "type"), f"the optimizer's type is {shown(name)}, not a name", "AdamW")
        return
    choices = known("deepspeed").choices
    own, torch_names = choices["optimizer"], choices["torch_optimizer"]
    path = ("optimizer", "type")
    if name.lower().replace("-", "").replace("_", "") in ONE_BIT:
        subject.report(
            "DS501",
            path,
            f"{name} was removed in deepspeed 0.19.7; before, it ran with fp16, CUDA and cupy, without ZeRO",
            "AdamW; deepspeed<=0.19.6 still has it; communication_data_type halves the traffic",
            since="deepspeed 0.19.7",
            source="deepspeedai/DeepSpeed pull request 8490",
        )
    elif name.lower() not in own and name not in torch_names:
        near = nearest(name.lower(), own) or nearest(name, torch_names)
        subject.report(
            "DS501", path, f"neither DeepSpeed nor torch.optim has an optimizer {shown(name)}", near or "AdamW"
        )
    elif stage > 0 and subject.data.get("zero_allow_untested_optimizer") is not True and _untested(name):
        subject.report(
            "DS502",
            path,
            f"ZeRO was not tested with {name}, so DeepSpeed refuses it",
            '"zero_allow_untested_optimizer": true, or AdamW',
        )
    change = changes("deepspeed")["optimizer.params.max_grad_norm"]
    if "max_grad_norm" in subject.section("optimizer", "params"):
        report_change(subject, "deepspeed", ("optimizer", "params", "max_grad_norm"), change)


def _untested(name: str) -> bool:
    tested = known("deepspeed").choices["zero_tested_torch_optimizer"]
    return name.lower() not in {t.lower() for t in tested} | {"lion", "muon"}


def _schedule(subject: Subject) -> None:
    section = subject.section("scheduler")
    if not section:
        return
    name = section.get("type")
    choices = known("deepspeed").choices
    if not isinstance(name, str) or name not in choices["scheduler"] + choices["torch_scheduler"]:
        near = nearest(str(name), choices["scheduler"] + choices["torch_scheduler"])
        subject.report(
            "DS504",
            ("scheduler", "type"),
            f"neither DeepSpeed nor torch has a schedule {shown(name)}",
            near or "one of " + ", ".join(choices["scheduler"]),
        )
        return
    if not isinstance(section.get("params"), dict):
        subject.report(
            "DS505", ("scheduler",), f"{name} has no params, and DeepSpeed does not start without", '"params": {}'
        )
        return
    params = section["params"]
    for key in LR_NEEDS.get(name, ()):
        if key not in params:
            subject.report("DS505", ("scheduler", "params"), f"{name} needs {key}", f'"{key}": ...')
    warmup = params.get("warmup_num_steps")
    if (
        name.startswith("Warmup")
        and warmup not in (None, AUTO)
        and (isinstance(warmup, float) or (whole(warmup) or 0) < 1)
    ):
        subject.report(
            "DS505",
            ("scheduler", "params", "warmup_num_steps"),
            f"warmup_num_steps is {shown(warmup)}, not a whole number from 1",
            "1 for no warm-up",
            since="deepspeed 0.19.6",
        )


def _rest(subject: Subject) -> None:
    if "gradient_clipping" not in subject.data:
        subject.report(
            "DS506",
            (),
            "gradient_clipping is not given: 1.0 since deepspeed 0.19.3, none before",
            '"gradient_clipping": 1.0, or 0.0 for none',
            since="deepspeed 0.19.3",
        )
    elif subject.data["gradient_clipping"] != AUTO and number(subject.data["gradient_clipping"]) is None:
        value = subject.data["gradient_clipping"]
        subject.report("DS114", ("gradient_clipping",), f"gradient_clipping is {shown(value)}, not a number", "1.0")
    operation = subject.data.get("gradient_allreduce_op")
    stage = whole(subject.at("zero_optimization", "stage")) or 0
    if operation is not None:
        if str(operation).lower() not in ("mean", "sum"):
            subject.report(
                "DS115", ("gradient_allreduce_op",), f"gradient_allreduce_op is {shown(operation)}", "mean or sum"
            )
        elif str(operation).lower() == "sum":
            others = {
                "ZeRO stage 3": stage == 3,
                "ZenFlow": subject.has("zero_optimization", "zenflow"),
                "DeepCompile": subject.at("compile", "deepcompile") is True,
            }
            for other in (name for name, there in others.items() if there):
                subject.report("DS507", ("gradient_allreduce_op",), f"sum is refused with {other}", "mean")
    if subject.section("activation_checkpointing"):
        subject.report(
            "DS508",
            ("activation_checkpointing",),
            "this section does nothing unless the model calls deepspeed.checkpointing.checkpoint",
            "turn checkpointing on in the model (gradient_checkpointing_enable(), torch.utils.checkpoint)",
        )
    if subject.data.get("managed_gradient_accumulation") is False:
        overlap = subject.at("zero_optimization", "overlap_comm")
        if (overlap is True and stage in (0, 1)) or subject.at("compile", "deepcompile") is True:
            subject.report(
                "DS509",
                ("managed_gradient_accumulation",),
                "false is refused with overlap_comm below ZeRO 2, with pipelines and with DeepCompile",
                "overlap_comm: false",
            )
