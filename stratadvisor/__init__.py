"""stratadvisor measures a cluster, decides how to train on it, and checks what it predicted.

The names in ``__all__`` are the library: they stay. They are imported when they are first used, so that
``import stratadvisor`` costs nothing; ``__init__.pyi`` says the same to type checkers.
"""

import importlib as _importlib

__version__ = "0.1.0"

_WHERE = {
    "stratadvisor.pipeline": (
        "Recommendation",
        "choose_targets",
        "load_cluster",
        "load_plan",
        "make_workload",
        "merge_profiles",
        "probe_hosts",
        "probe_job",
        "probe_node",
        "recommend",
        "resolve_model",
        "run_config",
        "write_bundle",
        "write_profile",
    ),
    "stratadvisor.comparison": ("compare", "read_cluster", "variations"),
    "stratadvisor.usual_model": ("largest_usual_model",),
    "stratadvisor.schema.plan": ("Plan",),
    "stratadvisor.schema.profile": ("ClusterProfile",),
    "stratadvisor.schema.validation": ("RunConfigOutcome",),
    "stratadvisor.schema.workload": ("ModelShape", "Workload"),
    "stratadvisor.schema.comparison": ("ComparedCluster", "Comparison"),
    "stratadvisor.errors": (
        "CheckFailedError",
        "DriftError",
        "EmitError",
        "ModelError",
        "NoFeasiblePlanError",
        "OutsideToleranceError",
        "ProbeError",
        "ProfileError",
        "RuleError",
        "StratadvisorError",
        "UsageError",
        "ValidationFailedError",
    ),
}
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}
__all__ = ["__version__", *sorted(_MODULE_OF)]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'stratadvisor' has no attribute {name!r}")
    value = getattr(_importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
