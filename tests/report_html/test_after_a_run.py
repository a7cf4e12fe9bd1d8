"""A real run on two processes leaves its result where the report finds it. CPU and gloo."""

from __future__ import annotations

import json

import pytest
from plan_for_tests import small_shape
from report_pages import GIB, Page, inner

from stratadvisor import pipeline
from stratadvisor.cli import run
from stratadvisor.schema.base import measured, reported
from stratadvisor.schema.profile import ClusterProfile, DeviceProfile, NodeProfile
from stratadvisor.schema.validation import RunConfigOutcome
from stratadvisor.schema.workload import Workload
from stratadvisor.store import dump

pytestmark = pytest.mark.process
STEPS = 4


def test_the_report_of_a_bundle_that_ran_shows_what_was_measured(tmp_path, capsys):
    devices = tuple(
        DeviceProfile(
            index=i,
            kind="cpu",
            name="processor",
            memory_total_bytes=reported(6.0 * GIB),
            memory_free_bytes=reported(6.0 * GIB),
            matmul_flops_per_second={"fp32": measured(5e10)},
            memory_bandwidth_bytes_per_second=measured(8e9),
        )
        for i in range(2)
    )
    profile = ClusterProfile(nodes=(NodeProfile(hostname="localhost", devices=devices),))
    workload = Workload(model=small_shape(), sequence_length=32, global_batch_size=4)
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    pipeline.write_bundle(pipeline.recommend(profile, workload, strategy="ddp"), bundle)
    limits = ["--time-limit", "1500", "--stall-limit", "900"]
    assert run(["run-config", str(bundle), "--steps", str(STEPS), "--json", *limits]) == 0
    printed = RunConfigOutcome.model_validate(json.loads(capsys.readouterr().out))
    saved = RunConfigOutcome.model_validate_json((bundle / "validation" / pipeline.RESULT_NAME).read_text())
    assert dump(saved) == dump(printed)
    assert run(["report", str(bundle), "-o", str(tmp_path / "r.html")]) == 0
    read = Page((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert f"A validation run of {STEPS} steps completed." in read.all("section", id="sure")[0].text
    compared = inner(read.all("figure", id="compared-0")[0], "tbody")[0]
    step = next(row for row in inner(compared, "tr") if row.text.startswith("step time"))
    assert "(measured)" in step.text
    times = inner(read.all("figure", id="times")[0], "tbody")[0]
    assert len(inner(times, "tr")) == STEPS
