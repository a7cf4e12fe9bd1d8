"""ZeRO: the stage, and what each stage can do."""

from __future__ import annotations

from typing import Any

from stratadvisor.lint.subject import AUTO, Subject, number, shown, whole

ZERO = "zero_optimization"
DEVICES = ("none", "cpu", "nvme")
SIZES = (
    "reduce_bucket_size",
    "allgather_bucket_size",
    "sub_group_size",
    "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold",
    "stage3_max_live_parameters",
    "stage3_max_reuse_distance",
)
STAGE3_ONLY = ("zero_hpz_partition_size", "zero_quantized_weights", "zero_quantized_nontrainable_weights")


def check_zero(subject: Subject) -> None:
    """Report stages, offloads and extras that contradict each other."""
    raw = subject.data.get(ZERO)
    if raw is None:
        return
    if isinstance(raw, bool):
        subject.report(
            "DS411",
            (ZERO,),
            f"zero_optimization: {shown(raw)} means stage {int(raw)} and is deprecated",
            f'"zero_optimization": {{"stage": {int(raw)}}}',
        )
        return
    if not isinstance(raw, dict):
        subject.report("DS114", (ZERO,), f"zero_optimization is {shown(raw)}, not a section", '{"stage": 2}')
        return
    written = raw.get("stage", 0)
    if written == AUTO:
        return
    stage = written if isinstance(written, int) and not isinstance(written, bool) else whole(written)
    if stage not in (0, 1, 2, 3):
        subject.report("DS401", (ZERO, "stage"), f"ZeRO stage is {shown(written)}", "0, 1, 2 or 3")
        return
    _numbers(subject, raw)
    _offloads(subject, raw, stage)
    _extras(subject, raw, stage)


def _numbers(subject: Subject, zero: dict[Any, Any]) -> None:
    for key in SIZES:
        value = zero.get(key)
        least = 1 if key == "reduce_bucket_size" else 0
        if value is not None and value != AUTO and (whole(value) is None or (whole(value) or 0) < least):
            subject.report(
                "DS114",
                (ZERO, key),
                f"{key} is {shown(value)}, not a whole number of elements",
                "500000000 or less; in elements, not bytes",
            )


def _offloads(subject: Subject, zero: dict[Any, Any], stage: int) -> None:
    for name, old in (("offload_optimizer", "cpu_offload"), ("offload_param", "cpu_offload_param")):
        if zero.get(name) is not None and zero.get(old) is not None:
            subject.report(
                "DS413", (ZERO, old), f"{old} and {name} are both given; DeepSpeed refuses that", f"delete {old}"
            )
        if zero.get(name) is not None:
            _device(subject, zero[name], name, stage)
    own = zero.get("offload_optimizer")
    own = own if isinstance(own, dict) else {}
    ratio = number(own.get("ratio"))
    if ratio is not None and ratio < 1 and stage != 3:
        subject.report(
            "DS404", (ZERO, "offload_optimizer", "ratio"), f"a ratio of {ratio:g} is for stage 3, not {stage}", "1.0"
        )
    if own.get("super_offload") is True and stage != 3:
        subject.report(
            "DS405",
            (ZERO, "offload_optimizer", "super_offload"),
            f"super_offload is for stage 3, not {stage}",
            "stage 3",
        )


def _device(subject: Subject, section: Any, name: str, stage: int) -> None:
    """Check where one of the two offloads goes."""
    if not isinstance(section, dict):
        subject.report("DS114", (ZERO, name), f"{name} is {shown(section)}, not a section", '{"device": "cpu"}')
        return
    device = section.get("device", "none")
    where = (ZERO, name, "device")
    if device in (AUTO, "none"):
        return
    if device not in DEVICES:
        subject.report("DS115", where, f"device is {shown(device)}", "none, cpu or nvme")
        return
    if name == "offload_param" and stage != 3:
        subject.report(
            "DS402",
            (ZERO, name),
            f"offload_param is for stage 3; with stage {stage} the parameters stay on the device",
            "stage 3, or delete it",
        )
    elif stage == 0:
        subject.report("DS403", (ZERO, name), "offload_optimizer does nothing without ZeRO", "stage 1, 2 or 3")
    if device == "nvme" and not section.get("nvme_path"):
        subject.report("DS406", (ZERO, name), "the device is nvme, but there is no nvme_path", '"nvme_path": "/..."')
    elif device == "nvme" and stage != 3:
        subject.report("DS406", where, f"offload to NVMe is for stage 3, not {stage}", "stage 3, or the device cpu")


def _extras(subject: Subject, zero: dict[Any, Any], stage: int) -> None:
    if stage != 3:
        idle = [k for k in zero if str(k).startswith("stage3_") and zero[k] not in (False, None, AUTO)]
        idle += [k for k in STAGE3_ONLY if zero.get(k) not in (None, False, 1)]
        for key in idle:
            subject.report("DS407", (ZERO, str(key)), f"{key} does nothing with stage {stage}", "stage 3, or delete it")
    flow = zero.get("zenflow")
    if isinstance(flow, dict):
        offload = zero.get("offload_optimizer")
        if stage == 0 or not isinstance(offload, dict) or offload.get("device", "none") == "none":
            subject.report(
                "DS408",
                (ZERO, "zenflow"),
                "ZenFlow is for ZeRO with offload_optimizer",
                '"offload_optimizer": {"device": "cpu"}',
            )
        strategy, interval = flow.get("select_strategy", AUTO), flow.get("select_interval", AUTO)
        if (strategy == AUTO) != (interval == AUTO):
            subject.report(
                "DS408",
                (ZERO, "zenflow", "select_interval"),
                "select_strategy and select_interval are either both auto or both given",
                '"select_strategy": "step" with a number',
            )
    stages = whole(subject.at("pipeline", "stages"))
    if stage >= 2 and stages is not None and stages > 1:
        subject.report(
            "DS409",
            (ZERO, "stage"),
            f"pipelines keep gradients over micro-batches, stage {stage} scatters them: DeepSpeed refuses the pair",
            "stage 1, which pipelines allow",
        )
    if zero.get("compute_grad_norm") is False:
        clipping = subject.data.get("gradient_clipping", 1.0)
        if stage not in (1, 2) or clipping:
            subject.report(
                "DS410",
                (ZERO, "compute_grad_norm"),
                "false is for stages 1 and 2 without gradient clipping (which is on by default)",
                '"gradient_clipping": 0.0, or delete it',
            )
    if zero.get("legacy_stage1") is True:
        subject.report("DS412", (ZERO, "legacy_stage1"), "the engine raises on legacy_stage1", "delete it")
