"""Check one file: read it, see whose it is, run that framework's rules; memory when hardware and model are given."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stratadvisor.errors import UsageError
from stratadvisor.lint.accelerate_rules import check_accelerate
from stratadvisor.lint.deepspeed_rules import check_deepspeed
from stratadvisor.lint.detect import detect
from stratadvisor.lint.finding import SEVERITIES, Finding, Kind, Loader
from stratadvisor.lint.hardware import check_hardware
from stratadvisor.lint.key_rules import report_twice
from stratadvisor.lint.known import KINDS, known
from stratadvisor.lint.lightning_rules import check_lightning
from stratadvisor.lint.memory import check_memory
from stratadvisor.lint.reader import read_config
from stratadvisor.lint.subject import Subject
from stratadvisor.lint.transformers_rules import check_transformers
from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.workload import ModelShape

CHECKS = {
    "deepspeed": check_deepspeed,
    "accelerate": check_accelerate,
    "lightning": check_lightning,
    "transformers": check_transformers,
}
LOADERS: tuple[Loader, ...] = ("unknown", "none", "transformers", "accelerate", "lightning")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The findings of one file."""

    kind: Kind
    framework_version: str
    """Release whose keys the file was compared with."""
    findings: tuple[Finding, ...]

    def count(self, severity: str) -> int:
        """Return how many findings have a severity."""
        return sum(f.severity == severity for f in self.findings)


def check_file(
    path: Path,
    *,
    kind: str | None = None,
    loader: str = "unknown",
    world_size: int | None = None,
    cluster: Cluster | None = None,
    shape: ModelShape | None = None,
    sequence_length: int = 2048,
    checkpointing: bool | None = None,
) -> Checked:
    """Return the findings of a configuration file.

    Args:
        path: JSON by its ending, YAML otherwise.
        kind: deepspeed, accelerate, lightning, transformers; None looks at the keys.
        loader: who reads a DeepSpeed file; decides what "auto" means.
        world_size: ranks of the job; None takes the cluster's devices, or checks what holds for any.
        cluster: hardware, for batch and memory.
        shape: the model, for memory; only together with a cluster.
        sequence_length: tokens, for memory.
        checkpointing: whether the model recomputes activations, where the file cannot say it.

    Raises:
        UsageError: the file cannot be read, or nothing says whose it is.

    """
    if kind is not None and kind not in KINDS:
        raise UsageError(f"--kind {kind[:40]!r} is not one of {', '.join(KINDS)}")
    if loader not in LOADERS:
        raise UsageError(f"--loader {loader[:40]!r} is not one of {', '.join(LOADERS)}")
    read = read_config(path)
    found: Kind = detect(read.data, str(path)) if kind is None else next(k for k in KINDS if k == kind)
    subject = Subject(
        data=read.data,
        places=read.places,
        world_size=world_size if world_size is not None else None if cluster is None else cluster.num_devices,
        num_nodes=None if cluster is None or world_size is not None else cluster.num_nodes,
        loader=next(name for name in LOADERS if name == loader),
        folder=path.parent,
    )
    report_twice(subject, refused=found == "deepspeed")
    CHECKS[found](subject)
    if cluster is not None:
        check_hardware(subject, found, cluster)
    if cluster is not None and shape is not None:
        check_memory(subject, found, shape, cluster, sequence_length=sequence_length, checkpointing=checkpointing)
    order = {severity: rank for rank, severity in enumerate(SEVERITIES)}
    findings = sorted(
        set(subject.findings), key=lambda f: (order[f.severity], f.file, f.line or 0, f.path, f.code, f.message)
    )
    return Checked(kind=found, framework_version=known(found).version, findings=tuple(findings))
