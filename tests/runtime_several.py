"""Run several configurations one after the other in the same ranks: starting ranks costs more than training here.

    python -m torch.distributed.run --standalone --nproc-per-node 2 runtime_several.py FILE

FILE: JSON list of {"bundle": directory, "arguments": [...], "forget": checkpoint to delete first or null}.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

from stratadvisor.runtime import data, model
from stratadvisor.runtime.program import main


def run(jobs: list[dict[str, object]]) -> None:
    for number, job in enumerate(jobs):
        forget = job.get("forget")
        if forget and os.environ["RANK"] == "0":
            shutil.rmtree(str(forget))
        code = main(model.build, data.token_dataset, Path(str(job["bundle"])), [str(a) for a in job["arguments"]])
        if code:
            sys.exit(f"job {number} ended with {code}")


if __name__ == "__main__":
    run(json.loads(Path(sys.argv[1]).read_text()))
