"""The contract between a training program and whoever reads its log: one JSON object a line in metrics.jsonl.

The runtime writes these keys (it cannot import this module, being carried in bundles; a test compares the two).
"""

RUN_FOLDER = "validation"
"""Folder in a bundle that holds its last validation run."""
METRICS_NAME = "metrics.jsonl"
"""Written by rank 0 to the directory in STRATADVISOR_RUN_DIR (default: run/ in the bundle)."""

START_KEYS = (
    "event",  # "start"
    "strategy",
    "world_size",
    "backend",
    "device",
    "num_parameters",
    "device_energy_origin",  # what counts the devices' energy, or "unknown: " and why
    "host_energy_origin",  # the same for processors and memory of the hosts
    "time",  # seconds since 1970
)

STEP_KEYS = (
    "event",  # "step"
    "step",  # optimizer step, from 1
    "loss",  # mean over all ranks and tokens of the step
    "tokens",  # of all ranks in this step
    "samples",  # sequences (or items) of all ranks in this step
    "step_seconds",  # wall time of the slowest rank's step
    "compute_seconds",  # own time of the slowest rank: neither waiting for data nor for communication
    "data_wait_seconds",  # max over ranks
    "communication_seconds",  # exposed: time waited for communication, None when it cannot be told apart
    "straggler_spread_seconds",  # own time of the slowest rank less that of the fastest
    "peak_device_bytes",  # max over ranks; torch.cuda.max_memory_reserved, or the process's peak RSS on CPU
    "peak_allocated_bytes",  # torch.cuda.max_memory_allocated; None on CPU
    "device_energy_joules",  # of all devices since the start of the process; None when unknown
    "host_energy_joules",  # of all hosts, whatever runs there, since the start of the process; None when unknown
    "rank_step_seconds",  # list: own compute time of each rank
    "learning_rate",
)

LOADER_KEYS = ("event", "step", "workers", "reason")
"""event = "loader": the loader workers that rank 0 advises for itself after the first steps, and why."""

CHANGE_KEYS = ("event", "step", "kind", "reason")
"""event = "change": an adaptive program goes on in another way after this step."""

END_KEYS = (
    "event",  # "end"
    "steps",
    "reason",  # "completed", "interrupted"
    "peak_device_bytes",
    "host_rss_bytes",
    "device_energy_joules",  # as in the last step
    "host_energy_joules",
)

ENVIRONMENT = {
    "STRATADVISOR_RUN_DIR": "directory for metrics and checkpoints",
    "STRATADVISOR_STEPS": "stop after this many optimizer steps (overrides --steps)",
}
