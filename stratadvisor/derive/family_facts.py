"""Facts about the families of the flowchart: does one fit, and how long would it take beside the best exact one."""

from __future__ import annotations

from collections.abc import Iterator

from stratadvisor.derive.context import EXACT, Context, fastest, known, spec, unknown
from stratadvisor.schema.facts import Fact
from stratadvisor.schema.rules import FAMILIES

SPECS = (
    spec("family.exact.feasible", "boolean", "", f"whether a configuration of {', '.join(EXACT)} fits"),
    *(spec(f"family.{f}.feasible", "boolean", "", f"whether a configuration of the family {f} fits") for f in FAMILIES),
    *(
        spec(
            f"family.{f}.relative_time",
            "number",
            "ratio",
            f"predicted time to the target of the family {f}, its further steps included, over the best exact one's",
        )
        for f in FAMILIES
    ),
)


def derive(context: Context) -> Iterator[Fact]:
    """Yield the facts of ``SPECS``."""
    exact = fastest(context.of_family(*EXACT))
    yield known("family.exact.feasible", exact is not None, "estimated")
    for family in FAMILIES:
        best = fastest(context.of_family(family))
        name = f"family.{family}.relative_time"
        reasons = [c.infeasible_reason for c, own in context.families if own == family]
        why = next((r for r in reasons if r), "no configuration of it applies to this cluster")
        yield known(f"family.{family}.feasible", best is not None, "estimated", "" if best is not None else why)
        if best is None:
            yield unknown(name, f"{family} does not fit: {why}")
        elif exact is None or exact.run_seconds.likely <= 0:
            yield unknown(name, "no exact method fits to compare with")
        else:
            yield known(
                name,
                best.run_seconds.likely / exact.run_seconds.likely,
                "estimated",
                f"{best.strategy} beside {exact.strategy}",
            )
