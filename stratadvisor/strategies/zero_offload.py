"""ZeRO with optimizer states, and at stage 3 parameters too, in host memory (arXiv:2101.06840, arXiv:2104.07857).

Every optimizer step crosses PCIe and runs Adam on the CPU, so this is for models that fit no other way.
"""

from __future__ import annotations

from collections.abc import Iterator

from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.layout import Candidate
from stratadvisor.schema.workload import Workload
from stratadvisor.strategies.base import Strategy
from stratadvisor.strategies.common import explore, with_checkpointing
from stratadvisor.strategies.site import sharing_site
from stratadvisor.strategies.zero import whole_nodes, zero_layout


def candidates(cluster: Cluster, workload: Workload) -> Iterator[Candidate]:
    """Yield ZeRO-2 and ZeRO-3 with the optimizer on the host, and ZeRO-3 with the parameters there as well."""
    if workload.method != "full" or workload.optimizer != "adamw":
        return  # adapters leave nothing worth moving, and DeepSpeed's CPU optimizer is Adam in fp32
    for selection in whole_nodes(cluster):
        found = sharing_site("zero_offload", selection, workload)
        if found is None or any(c.device.kind == "cpu" for c in found[0].cluster.classes):
            continue  # a CPU's memory is the host's
        at, batch = found
        layouts = [zero_layout(at, 2, optimizer_offload="cpu"), zero_layout(at, 3, optimizer_offload="cpu")]
        layouts.append(zero_layout(at, 3, optimizer_offload="cpu", parameter_offload="cpu"))
        for layout in layouts:
            stage = "ZeRO-2" if layout.sharding == "gradients" else "ZeRO-3"
            what = "optimizer and parameters" if layout.parameter_offload == "cpu" else "optimizer"
            note = f"{stage} with {what} in host memory"
            yield from explore(at, with_checkpointing(at, layout), batch, notes=(note,))


ZERO_OFFLOAD = Strategy(
    name="zero_offload",
    title="ZeRO with offload to host memory",
    family="synchronous",
    target="deepspeed",
    candidates=candidates,
)
