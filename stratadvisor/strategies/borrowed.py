"""What a measured run of one strategy says about the others on the same device.

Most of a step is computation, which strategies share. Were only the measured strategy corrected, a run that was slower
than predicted would drive the next plan to whatever has not been measured yet.
"""

from __future__ import annotations

import math
from dataclasses import replace

from stratadvisor.schema.cluster import Cluster, NodeClass
from stratadvisor.schema.layout import TimeEstimate


def with_borrowed_ratio(time: TimeEstimate, part: Cluster, strategy: str) -> TimeEstimate:
    """Return the time, scaled where a device has measured ratios of other strategies but none of this one."""
    if not part.calibration_time_ratios:
        return time
    ratio = max((_borrowed(part, c, strategy) for c in part.classes), key=lambda r: abs(math.log(r)))
    if ratio == 1.0:
        return time
    note = (
        f"{strategy} was not measured here: what others were found to take against their prediction, {ratio:.2f},"
        " is taken for it too"
    )
    return replace(
        time,
        terms_seconds={name: seconds * ratio for name, seconds in time.terms_seconds.items()},
        step_seconds=time.step_seconds.scaled(ratio),
        communication_seconds=time.communication_seconds * ratio,
        exposed_communication_seconds=time.exposed_communication_seconds * ratio,
        assumptions=(*time.assumptions, note),
    )


def _borrowed(part: Cluster, node_class: NodeClass, strategy: str) -> float:
    """Return the geometric mean of the device's ratios; 1 when there are none, or one of its own."""
    names = {node_class.device.catalog_key, node_class.device.name}
    known = {own: ratio for (name, own), ratio in part.calibration_time_ratios.items() if name in names}
    if not known or strategy in known:
        return 1.0
    return math.exp(sum(map(math.log, known.values())) / len(known))
