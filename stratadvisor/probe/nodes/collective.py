"""A node's part in what needs torch, in a child process: the store of a sweep, and the sweep."""

from __future__ import annotations

from typing import Any

from stratadvisor.probe.crew import Crew
from stratadvisor.probe.lanes import threads_per_lane, usable_cores
from stratadvisor.probe.looker import QUICK_SHARE
from stratadvisor.probe.nodes.messages import Swept
from stratadvisor.schema.profile import ClusterProfile

SWEEP_BUDGET_SECONDS = 6.0


class Collectives:
    """The child process of a node for what needs torch."""

    def __init__(self, profile: ClusterProfile, address: str, interface: str, *, quick: bool) -> None:
        node = profile.nodes[0]
        on_cpu = all(device.kind == "cpu" for device in node.devices)
        self._device = "cpu" if on_cpu else "cuda:0"
        self._threads = threads_per_lane(usable_cores(node.cpu), 1)
        self._address, self._quick = address, quick
        self._crew = Crew(1, self._threads, gloo_interface=interface or "")

    def do(self, kind: str, content: dict[str, Any]) -> Swept:
        """Open the store of a sweep, or take part in one."""
        limit = float(content["limit"])
        if kind == "open":
            settings: dict[str, Any] = {"address": self._address, "wait_seconds": limit}
            answer = self._crew.ask("stratadvisor.probe.exchange:open_store", {0: settings}, 2 * limit)[0]
            if answer.status != "ok":
                return Swept(status="failed", reason=answer.reason[:300])
            return Swept(port=answer.value)
        settings = {
            **{name: content[name] for name in ("position", "size", "address", "port")},
            "device": self._device,
            "threads": self._threads,
            "wait_seconds": limit,
            "budget_seconds": SWEEP_BUDGET_SECONDS * (QUICK_SHARE if self._quick else 1.0),
            "quick": self._quick,
        }
        answer = self._crew.ask("stratadvisor.probe.exchange:sweep_between", {0: settings}, 1.8 * limit)[0]
        if answer.status != "ok":
            return Swept(status="failed", reason=answer.reason[:300])
        return Swept(times=answer.value if content["position"] == 0 else None)

    def __enter__(self) -> Collectives:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the child process."""
        self._crew.close()
