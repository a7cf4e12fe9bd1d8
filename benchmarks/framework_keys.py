# ruff: noqa: SLF001 - what a framework knows is often private to it
"""Read which keys the installed frameworks know, and write them to ``stratadvisor/lint/data``.

Run it after a framework was updated, in an environment with deepspeed, transformers, accelerate and lightning:

    DS_ACCELERATOR=cpu python benchmarks/framework_keys.py [--output FOLDER]

Keys come from the frameworks' own definitions: pydantic fields, dataclass fields, argument parsers, signatures; and,
where a parser reads a plain dictionary, from a dictionary that notes what is asked of it.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import os
import re
import typing
from pathlib import Path
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")
FOLDER = Path(__file__).parent.parent / "stratadvisor" / "lint" / "data"


class Noting(dict):
    """A dictionary that remembers which keys were asked for."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.asked: set[str] = set()

    def get(self, key, default=None):
        self.asked.add(key)
        return super().get(key, default)

    def __getitem__(self, key):
        self.asked.add(key)
        return super().__getitem__(key)

    def __contains__(self, key) -> bool:
        self.asked.add(key)
        return super().__contains__(key)

    def keys(self):
        return self

    def __copy__(self):
        return self


def fields_of(model: Any) -> list[str]:
    """Return names and aliases of a pydantic model's fields."""
    names = set(model.model_fields)
    names |= {f.alias for f in model.model_fields.values() if f.alias}
    return sorted(names)


def parameters_of(function: Any) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return sorted(n for n, p in inspect.signature(function).parameters.items() if p.kind in kinds and n != "self")


def deepspeed_keys() -> dict[str, Any]:
    import deepspeed
    import torch
    from deepspeed.autotuning.config import DeepSpeedAutotuningConfig  # noqa: F401
    from deepspeed.comm.config import CommsLoggerConfig
    from deepspeed.compile.config import CompileConfig
    from deepspeed.monitor import config as monitor
    from deepspeed.profiling.config import DeepSpeedFlopsProfilerConfig  # noqa: F401
    from deepspeed.runtime import config, lr_schedules, precision_config
    from deepspeed.runtime.tensor_parallel.config import TPTrainingConfig
    from deepspeed.runtime.zenflow.zenflow_config import ZenFlowConfig
    from deepspeed.runtime.zero import config as zero
    from deepspeed.runtime.zero.offload_config import (
        DeepSpeedZeroOffloadOptimizerConfig,
        DeepSpeedZeroOffloadParamConfig,
    )
    from deepspeed.runtime.zero.utils import ZERO_SUPPORTED_OPTIMIZERS

    strict = {
        "zero_optimization": fields_of(zero.DeepSpeedZeroConfig),
        "zero_optimization.offload_optimizer": fields_of(DeepSpeedZeroOffloadOptimizerConfig),
        "zero_optimization.offload_param": fields_of(DeepSpeedZeroOffloadParamConfig),
        "zero_optimization.zenflow": fields_of(ZenFlowConfig),
        "fp16": fields_of(precision_config.DeepSpeedFP16Config),
        "bf16": fields_of(precision_config.DeepSpeedBF16Config),
        "comms_logger": fields_of(CommsLoggerConfig),
        "compile": fields_of(CompileConfig),
        "tensor_parallel": fields_of(TPTrainingConfig),
        "hybrid_engine": fields_of(config.HybridEngineConfig),
        "tensorboard": fields_of(monitor.TensorBoardConfig),
        "wandb": fields_of(monitor.WandbConfig),
        "csv_monitor": fields_of(monitor.CSVConfig),
        "comet": fields_of(monitor.CometConfig),
    }
    plain = (
        "activation_checkpointing", "optimizer", "scheduler", "checkpoint", "data_types", "aio", "torch_autocast",
        "flops_profiler",
    )  # fmt: skip
    inner: dict[str, Noting] = {name: Noting() for name in plain}
    inner["optimizer"] = Noting({"type": "Adam", "params": {}})
    inner["scheduler"] = Noting({"type": "WarmupLR", "params": {}})
    inner["torch_autocast"] = Noting({"dtype": "bf16", "lower_precision_safe_modules": []})
    top = Noting({"train_batch_size": 1, **inner})
    config.DeepSpeedConfig(top)
    removed = set(config._REMOVED_TOP_LEVEL_CONFIG_KEYS)
    names = [*sorted(n for n in top.asked - removed if isinstance(n, str)), "sequence_parallel_size"]
    supported = [
        name
        for name in dir(torch.optim)
        if inspect.isclass(getattr(torch.optim, name))
        and issubclass(getattr(torch.optim, name), torch.optim.Optimizer)
        and name != "Optimizer"
    ]
    tested = sorted(c.__name__ for c in ZERO_SUPPORTED_OPTIMIZERS if c.__module__.startswith("torch.optim"))
    return {
        "framework": "deepspeed",
        "version": deepspeed.__version__,
        "sections": {
            "": sorted(set(names)),
            **strict,
            **{name: sorted(k for k in noted.asked if isinstance(k, str)) for name, noted in inner.items()},
        },
        "strict_sections": sorted(strict),
        "removed": sorted(removed) + [f"zero_optimization.{k}" for k in sorted(config._REMOVED_ZERO_CONFIG_KEYS)],
        "choices": {
            "optimizer": sorted(config.DEEPSPEED_OPTIMIZERS),
            "torch_optimizer": supported,
            "zero_tested_torch_optimizer": tested,
            "scheduler": list(lr_schedules.VALID_LR_SCHEDULES),
            "torch_scheduler": sorted(
                n for n in vars(torch.optim.lr_scheduler) if n.endswith(("LR", "Restarts", "Plateau")) and n[0] != "_"
            ),
        },
    }


def transformers_keys() -> dict[str, Any]:
    import transformers
    from transformers import Seq2SeqTrainingArguments, TrainingArguments
    from transformers.integrations import deepspeed as integration
    from transformers.trainer_pt_utils import AcceleratorConfig
    from transformers.trainer_utils import HubStrategy, IntervalStrategy, SaveStrategy, SchedulerType
    from transformers.training_args import OptimizerNames

    hints = typing.get_type_hints(TrainingArguments)

    def kind(name: str) -> str:
        text = str(hints.get(name, ""))
        if hints.get(name) is bool or text in ("bool | None", "typing.Optional[bool]"):
            return "bool"
        if hints.get(name) in (int, float) or text in ("int | None", "float | None", "typing.Optional[int]"):
            return "number"
        return "other"

    source = inspect.getsource(TrainingArguments)
    fsdp = set(re.findall(r'fsdp_config(?:\.get\(|\[|\.setdefault\()"([a-z_0-9]+)"', source))
    fsdp |= set(re.findall(r'"([a-z_0-9]+)" in self\.fsdp_config', source))
    filled = re.findall(r'fill_(?:match|only)\(\s*"([a-z_0-9.]+)"', inspect.getsource(integration))
    own = {f.name for f in dataclasses.fields(TrainingArguments)}
    return {
        "framework": "transformers",
        "version": transformers.__version__,
        "sections": {
            "": sorted(own),
            "sequence_to_sequence": sorted({f.name for f in dataclasses.fields(Seq2SeqTrainingArguments)} - own),
            "fsdp_config": sorted(fsdp),
            "accelerator_config": sorted(f.name for f in dataclasses.fields(AcceleratorConfig)),
        },
        "types": {f: kind(f) for f in sorted(own) if kind(f) != "other"},
        "filled_in_deepspeed": sorted(set(filled)),
        "choices": {
            "optim": [o.value for o in OptimizerNames],
            "lr_scheduler_type": [s.value for s in SchedulerType],
            "eval_strategy": [s.value for s in IntervalStrategy],
            "logging_strategy": [s.value for s in IntervalStrategy],
            "save_strategy": [s.value for s in SaveStrategy],
            "hub_strategy": [s.value for s in HubStrategy],
        },
    }


def accelerate_keys() -> dict[str, Any]:
    import accelerate
    from accelerate.commands.config.config_args import ClusterConfig, SageMakerConfig
    from accelerate.commands.launch import launch_command_parser
    from accelerate.utils import constants
    from accelerate.utils.dataclasses import DistributedType, DynamoBackend, PrecisionType

    parser = launch_command_parser()
    names = {a.dest for a in parser._actions} - {"help", "training_script", "training_script_args"}
    groups = {g.title: {a.dest for a in g._group_actions} for g in parser._action_groups}

    def starting(prefix: str) -> list[str]:
        return sorted(n for n in names if n.startswith(prefix))

    return {
        "framework": "accelerate",
        "version": accelerate.__version__,
        "sections": {
            "": sorted(ClusterConfig.__dataclass_fields__),
            "sagemaker": sorted(SageMakerConfig.__dataclass_fields__),
            "deepspeed_config": sorted(groups["DeepSpeed Arguments"]),
            "fsdp_config": sorted({*starting("fsdp_"), "fsdp_ignored_modules"}),
            "parallelism_config": starting("parallelism_config_"),
            "megatron_lm_config": starting("megatron_lm_"),
            "fp8_config": starting("fp8_"),
            "dynamo_config": starting("dynamo_"),
            "mpirun_config": starting("mpirun_"),
        },
        "choices": {
            "distributed_type": [d.value for d in DistributedType],
            "mixed_precision": [p.value for p in PrecisionType],
            "dynamo_backend": [b.value.lower() for b in DynamoBackend],
            "fsdp_sharding_strategy": constants.FSDP_SHARDING_STRATEGY,
            "fsdp_auto_wrap_policy": constants.FSDP_AUTO_WRAP_POLICY,
            "fsdp_backward_prefetch": constants.FSDP_BACKWARD_PREFETCH,
            "fsdp_state_dict_type": constants.FSDP_STATE_DICT_TYPE,
            "deepspeed_multinode_launcher": constants.DEEPSPEED_MULTINODE_LAUNCHERS,
        },
    }


def lightning_keys() -> dict[str, Any]:
    import lightning
    import torch
    from lightning.fabric.plugins.precision.precision import (
        _PRECISION_INPUT_INT,
        _PRECISION_INPUT_STR,
        _PRECISION_INPUT_STR_ALIAS,
    )
    from lightning.pytorch.accelerators import AcceleratorRegistry
    from lightning.pytorch.strategies import (
        DDPStrategy,
        DeepSpeedStrategy,
        FSDPStrategy,
        ModelParallelStrategy,
        StrategyRegistry,
    )
    from lightning.pytorch.utilities import GradClipAlgorithmType

    ddp = parameters_of(torch.nn.parallel.DistributedDataParallel.__init__)
    fsdp = parameters_of(torch.distributed.fsdp.FullyShardedDataParallel.__init__)
    precision = [typing.get_args(kind) for kind in (_PRECISION_INPUT_STR, _PRECISION_INPUT_STR_ALIAS)]
    return {
        "framework": "lightning",
        "version": lightning.__version__,
        "sections": {
            "": parameters_of(lightning.Trainer.__init__),
            "DDPStrategy": sorted({*parameters_of(DDPStrategy.__init__), *ddp} - {"module", "device_ids"}),
            "FSDPStrategy": sorted({*parameters_of(FSDPStrategy.__init__), *fsdp} - {"module", "device_id"}),
            "DeepSpeedStrategy": parameters_of(DeepSpeedStrategy.__init__),
            "ModelParallelStrategy": parameters_of(ModelParallelStrategy.__init__),
        },
        "choices": {
            "strategy": sorted(StrategyRegistry.available_strategies()),
            "accelerator": sorted(AcceleratorRegistry.available_accelerators()),
            "precision": sorted({str(v) for values in precision for v in values})
            + sorted(str(v) for v in typing.get_args(_PRECISION_INPUT_INT)),
            "gradient_clip_algorithm": sorted(GradClipAlgorithmType.supported_types()),
        },
    }


READERS = {
    "deepspeed": deepspeed_keys,
    "transformers": transformers_keys,
    "accelerate": accelerate_keys,
    "lightning": lightning_keys,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=FOLDER)
    folder = parser.parse_args().output
    for name, reader in READERS.items():
        (folder / f"{name}.json").write_text(json.dumps(reader(), indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
