"""Case O-14: what an optimizer step on the host costs."""

from __future__ import annotations

from case_support import ADAM, GIB, declare, divided, plan_for, shape_of


def test_o14() -> None:
    """1.35B with offload by wish is told what it costs and that it need not be; 72B on 32 cards never needs it."""
    small = shape_of("1.35B").num_parameters
    assert ADAM * small < 20.5 * GIB < 24 * GIB
    forced = plan_for(declare("1x3090", host_gib=64, more="cpu_cores = 10"), "1.35B", strategy="zero_offload")
    terms = forced.predicted.time_terms_seconds
    # about 30 bytes of traffic for each parameter, at 10 to 60 GB/s of host memory
    spent = terms.get("optimizer", 0.0) + terms.get("offload", 0.0)
    assert 30 * small / 60e9 / 2 < spent < 30 * small / 10e9 * 2
    assert forced.environment["OMP_NUM_THREADS"] == "10"
    assert any("fits without offload" in w for w in forced.warnings)
    large = shape_of("72B").num_parameters
    assert ADAM * large / 32 < 0.5 * 80 * GIB
    assert divided(plan_for(declare("8xA100-80GB-SXM", host_gib=1000, nodes=4, network="200Gb/s"), "72B"))
