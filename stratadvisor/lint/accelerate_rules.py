"""An Accelerate configuration: keys, processes and machines, DeepSpeed and FSDP sections."""

from __future__ import annotations

from typing import Any

from stratadvisor.lint.deepspeed_rules import check_deepspeed
from stratadvisor.lint.key_rules import check_section
from stratadvisor.lint.known import known
from stratadvisor.lint.subject import Subject, nearest, shown, whole

SECTION_OF = {"deepspeed_config": "DEEPSPEED", "fsdp_config": "FSDP", "megatron_lm_config": "MEGATRON_LM"}
BARE = {"fsdp_config": "fsdp_", "fp8_config": "fp8_", "dynamo_config": "dynamo_"}
"""Sections whose keys Accelerate also takes without the prefix."""
FSDP1_ONLY = ("fsdp_sharding_strategy", "fsdp_backward_prefetch", "fsdp_use_orig_params", "fsdp_sync_module_states")
BESIDE_FILE = (
    "gradient_accumulation_steps",
    "gradient_clipping",
    "zero_stage",
    "offload_optimizer_device",
    "offload_param_device",
    "offload_optimizer_nvme_path",
    "offload_param_nvme_path",
    "zero3_save_16bit_model",
)
ZERO3_KEYS = ("zero3_init_flag", "zero3_save_16bit_model", "offload_param_device")
LOOPBACK = ("localhost", "127.", "::1", "0.0.0.0")  # noqa: S104 - compared with, never bound


def check_accelerate(subject: Subject) -> None:
    """Run every rule on an Accelerate configuration."""
    _keys(subject)
    _choices(subject)
    if subject.data.get("compute_environment") == "AMAZON_SAGEMAKER":
        return
    if "distributed_type" not in subject.data:
        subject.report(
            "ACC201",
            (),
            "distributed_type is missing; Accelerate does not start without it",
            "distributed_type: MULTI_GPU",
        )
    _machines(subject)
    _deepspeed(subject)
    _fsdp(subject)
    _parallelism(subject)


def _keys(subject: Subject) -> None:
    sections = known("accelerate").sections
    top = "sagemaker" if subject.data.get("compute_environment") == "AMAZON_SAGEMAKER" else ""
    check_section(
        subject, "accelerate", (), section=top, code="ACC101", what="is no key of Accelerate: it refuses the file"
    )
    for name in sections:
        if name in ("", "sagemaker"):
            continue
        value = subject.data.get(name)
        if value is None or value == {}:
            continue
        if not isinstance(value, dict):
            subject.report("ACC105", (name,), f"{name} is {shown(value)}, not a section", f"{name}: {{...}}")
            continue
        prefix = BARE.get(name, "")
        bare = frozenset(key.removeprefix(prefix) for key in sections[name]) if prefix else frozenset()
        check_section(
            subject,
            "accelerate",
            (name,),
            section=name,
            code="ACC102",
            what=f"is no key of {name}: nothing reads it",
            also=bare,
        )
        wanted, kind = SECTION_OF.get(name), subject.data.get("distributed_type")
        if wanted is not None and kind is not None and str(kind).upper() != wanted:
            subject.report(
                "ACC106",
                (name,),
                f"distributed_type is {shown(kind)}: {name} is not used",
                f"distributed_type: {wanted}, or delete it",
            )


def _choices(subject: Subject) -> None:
    choices = known("accelerate").choices
    for path, lower in (
        (("distributed_type",), False),
        (("mixed_precision",), True),
        (("deepspeed_config", "deepspeed_multinode_launcher"), True),
        (("fsdp_config", "fsdp_auto_wrap_policy"), False),
        (("fsdp_config", "fsdp_state_dict_type"), False),
    ):
        value = subject.at(*path)
        allowed = choices[path[-1]]
        if value is None or (path[-1] == "mixed_precision" and value is False):
            continue  # YAML reads a bare no as false, and so does Accelerate
        if path[-1] == "distributed_type" and value is False:
            subject.report(
                "ACC105",
                path,
                "distributed_type is false: YAML reads a bare NO as false",
                "distributed_type: 'NO'",
                severity="warning",
            )
            continue
        text = str(value)
        if (text.lower() if lower else text if path[0] == "distributed_type" else text.upper()) not in allowed:
            near = nearest(text if not lower else text.lower(), allowed)
            subject.report("ACC105", path, f"{path[-1]} is {shown(value)}", near or "one of " + ", ".join(allowed))


def _machines(subject: Subject) -> None:
    kind = str(subject.data.get("distributed_type", "")).upper()
    processes, machines = subject.data.get("num_processes"), subject.data.get("num_machines", 1)
    count, num = whole(processes), whole(machines)
    if num is None or num < 1:
        subject.report("ACC203", ("num_machines",), f"num_machines is {shown(machines)}", "a whole number from 1")
        return
    if processes is None:
        if kind not in ("NO", "FALSE", ""):
            subject.report(
                "ACC203",
                (),
                "num_processes is missing: accelerate launch then needs --num_processes",
                "num_processes: the number of devices of all machines together",
                severity="note",
            )
        return
    if count is None or count < 1:
        subject.report(
            "ACC203",
            ("num_processes",),
            f"num_processes is {shown(processes)}",
            "the number of devices of all machines together",
        )
        return
    if count % num:
        lower = count - count % num
        subject.report(
            "ACC202",
            ("num_processes",),
            f"{count} processes on {num} machines: the launcher starts {count // num} on each and drops {count % num}",
            (f"{lower} or " if lower else "")
            + f"{lower + num}; unlike machines: torchrun with its own --nproc-per-node each",
        )
    rank = whole(subject.data.get("machine_rank", 0))
    if rank is None or not 0 <= rank < num:
        value = subject.data.get("machine_rank")
        subject.report(
            "ACC204",
            ("machine_rank",),
            f"machine_rank is {shown(value)} of {num} machines",
            f"0 to {num - 1}, one for each",
        )
    _reachable(subject, num)
    ids = subject.data.get("gpu_ids")
    if isinstance(ids, str) and ids not in ("all", "") and kind not in ("NO", "") and num == 1:
        listed = len([part for part in ids.split(",") if part.strip()])
        if listed < count:
            subject.report(
                "ACC207", ("gpu_ids",), f"{listed} GPU ids for {count} processes", "all, or one id for each process"
            )
    _cluster(subject, count, num)


def _reachable(subject: Subject, machines: int) -> None:
    address = subject.data.get("main_process_ip")
    if machines < 2:
        return
    if address is None and str(subject.data.get("distributed_type")) != "DEEPSPEED":
        subject.report(
            "ACC205", (), f"{machines} machines, but no main_process_ip", "main_process_ip: the address of machine 0"
        )
    elif isinstance(address, str) and address.startswith(LOOPBACK):
        subject.report(
            "ACC205",
            ("main_process_ip",),
            f"{shown(address)} is this machine itself; the others cannot reach it",
            "the address of machine 0",
        )


def _cluster(subject: Subject, processes: int, machines: int) -> None:
    if subject.world_size is not None and processes != subject.world_size:
        note = "; num_processes counts all machines" if processes * machines == subject.world_size else ""
        subject.report(
            "ACC206",
            ("num_processes",),
            f"{processes} processes, but {subject.world_size} devices{note}",
            f"num_processes: {subject.world_size}",
        )
    if subject.num_nodes is not None and machines != subject.num_nodes:
        subject.report(
            "ACC206",
            ("num_machines",),
            f"{machines} machines, but the cluster has {subject.num_nodes}",
            f"num_machines: {subject.num_nodes}",
        )


def _deepspeed(subject: Subject) -> None:
    section = subject.section("deepspeed_config")
    if section.get("deepspeed_config_file") not in (None, "none"):
        beside = [key for key in BESIDE_FILE if key in section]
        if subject.data.get("mixed_precision") not in (None, "no", False):
            beside.append("mixed_precision")
        for key in beside:
            path = (key,) if key == "mixed_precision" else ("deepspeed_config", key)
            subject.report(
                "ACC301",
                path,
                f"{key} beside deepspeed_config_file: Accelerate refuses the pair",
                "delete it and write it in that file",
            )
        inner = subject.named(section["deepspeed_config_file"])
        if inner is not None:
            inner.loader = "accelerate"
            check_deepspeed(inner)
        return
    stage = whole(section.get("zero_stage", 2))
    if section and stage not in (0, 1, 2, 3):
        subject.report(
            "ACC105",
            ("deepspeed_config", "zero_stage"),
            f"zero_stage is {shown(section.get('zero_stage'))}",
            "0, 1, 2 or 3",
        )
    elif stage != 3:
        for key in ZERO3_KEYS:
            if section.get(key) not in (None, False, "none", "false"):
                subject.report(
                    "ACC302",
                    ("deepspeed_config", key),
                    f"{key} is for ZeRO 3, not {stage}",
                    "zero_stage: 3, or delete it",
                )


def _fsdp_value(section: dict[Any, Any], name: str) -> Any:
    return section.get(name, section.get(name.removeprefix("fsdp_")))


def _fsdp(subject: Subject) -> None:
    section = subject.section("fsdp_config")
    if not section or str(subject.data.get("distributed_type")).upper() != "FSDP":
        return
    version = _fsdp_value(section, "fsdp_version")
    reshard = _fsdp_value(section, "fsdp_reshard_after_forward")

    def where(name: str) -> tuple[str, str]:
        return ("fsdp_config", name if name in section else name.removeprefix("fsdp_"))

    if version is None:
        subject.report(
            "ACC305",
            ("fsdp_config",),
            "fsdp_version is not given, so this is FSDP1",
            "fsdp_version: 2",
            since="accelerate 1.6",
        )
    elif whole(version) not in (1, 2):
        subject.report("ACC105", where("fsdp_version"), f"fsdp_version is {shown(version)}", "2")
        return
    two = whole(version) == 2
    if two:
        for key in FSDP1_ONLY:
            value = _fsdp_value(section, key)
            if value is not None and str(value).upper() not in ("NO_PREFETCH", "NONE"):
                fix = "fsdp_reshard_after_forward" if key == "fsdp_sharding_strategy" else "delete it"
                subject.report(
                    "ACC303", where(key), f"{key} is FSDP1's; FSDP2 does not use it", fix, since="accelerate 1.6"
                )
        if reshard is not None and str(reshard).lower() not in (
            "true",
            "false",
            "yes",
            "no",
            "1",
            "0",
            "on",
            "off",
            "y",
            "n",
            "t",
            "f",
        ):
            subject.report(
                "ACC304",
                where("fsdp_reshard_after_forward"),
                f"fsdp_reshard_after_forward is {shown(reshard)}; FSDP2 takes true or false",
                "true (FULL_SHARD) or false (SHARD_GRAD_OP)",
            )
        if str(_fsdp_value(section, "fsdp_state_dict_type")).upper() == "LOCAL_STATE_DICT":
            subject.report(
                "ACC304", where("fsdp_state_dict_type"), "FSDP2 has no LOCAL_STATE_DICT", "SHARDED_STATE_DICT"
            )
    elif isinstance(reshard, bool):
        subject.report(
            "ACC304",
            where("fsdp_reshard_after_forward"),
            f"fsdp_reshard_after_forward is {shown(reshard)}, which only FSDP2 takes",
            "fsdp_version: 2, or fsdp_sharding_strategy: FULL_SHARD",
        )
    offload = _fsdp_value(section, "fsdp_activation_checkpointing_offload")
    if offload is True and (not two or _fsdp_value(section, "fsdp_activation_checkpointing") is not True):
        subject.report(
            "ACC304",
            where("fsdp_activation_checkpointing_offload"),
            "this offload needs fsdp_activation_checkpointing and fsdp_version 2",
            "both, or delete it",
        )
    loading, sync = (
        _fsdp_value(section, "fsdp_cpu_ram_efficient_loading"),
        _fsdp_value(section, "fsdp_sync_module_states"),
    )
    if loading is not False and sync is False:  # the launcher takes true for a loading that is not given
        subject.report(
            "ACC304",
            where("fsdp_sync_module_states"),
            "loading on one rank only needs fsdp_sync_module_states; the launcher refuses false",
            "fsdp_sync_module_states: true",
        )


def _parallelism(subject: Subject) -> None:
    section = subject.section("parallelism_config")
    if not section:
        return
    fsdp2 = whole(_fsdp_value(subject.section("fsdp_config"), "fsdp_version")) == 2
    if str(subject.data.get("distributed_type")).upper() == "FSDP" and not fsdp2:
        subject.report(
            "ACC307", ("parallelism_config",), "parallelism_config is for FSDP2", "fsdp_config: {fsdp_version: 2}"
        )
    sizes = {
        name: whole(section.get(f"parallelism_config_{name}_size", 1)) or 0
        for name in ("dp_replicate", "dp_shard", "tp", "cp", "sp")
    }
    product = 1
    for size in sizes.values():
        product *= size
    count = whole(subject.data.get("num_processes"))
    if sizes["sp"] <= 1 and count is not None and product not in (1, count):
        text = " x ".join(f"{name} {size}" for name, size in sizes.items() if size != 1)
        subject.report(
            "ACC306",
            ("parallelism_config",),
            f"{text} = {product}, but num_processes is {count}",
            "sizes whose product is num_processes",
        )
