"""Run training jobs as forked ranks: starting an interpreter with torch for each rank costs more than training here.

    python runtime_ranks.py FILE

FILE: JSON list of jobs {"bundle", "arguments", "ranks", "program", "kill_after", "killed", "signal"}; the exit codes
of the ranks go to codes.json in each bundle, what they print to rank-N.log. With ``kill_after``, the ranks in
``killed`` (else all) get the signal (else SIGKILL) once the log has that many steps.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import runtime_equal
import torch.distributed as dist

from stratadvisor.runtime.program import main

WAIT_SECONDS = 300


def rank_process(job: dict[str, Any], rank: int, port_pipe: int) -> int:
    """Be one rank; return the exit code."""
    log = os.open(Path(job["bundle"]) / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    port = os.read(port_pipe, 16).decode()
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(job["ranks"]), LOCAL_WORLD_SIZE="1")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, TORCHELASTIC_USE_AGENT_STORE="True")
    os.environ.update(job.get("environment", {}))
    build_model, build_data = runtime_equal.PROGRAMS[job.get("program", "default")]
    limits = job.get("limit_file_bytes")
    if limits:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (limits, limits))
    return main(build_model, build_data, Path(job["bundle"]), [str(a) for a in job["arguments"]])


def steps_logged(bundle: Path) -> int:
    path = bundle / "run" / "metrics.jsonl"
    return path.read_text().count('"event": "step"') if path.is_file() else 0


def run(job: dict[str, Any]) -> list[int]:
    """Run one job; return the exit codes by rank, negative for a signal."""
    bundle, ranks = Path(job["bundle"]), int(job.setdefault("ranks", 2))
    pipes, children = [], []
    before = steps_logged(bundle) if "--resume" in job["arguments"] else 0
    for rank in range(ranks):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            code = 99
            try:
                code = rank_process(job, rank, read)
            except SystemExit as ended:
                code = ended.code if isinstance(ended.code, int) else 1
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        os.close(read)
        pipes.append(write)
        children.append(child)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for write in pipes:
        os.write(write, str(store.port).encode())
        os.close(write)
    codes: dict[int, int] = {}
    deadline = time.monotonic() + WAIT_SECONDS
    pending = job.get("kill_after")
    while len(codes) < ranks:
        if pending is not None and steps_logged(bundle) - before >= pending:
            for rank in job.get("killed", range(ranks)):
                if rank not in codes:
                    os.kill(children[rank], job.get("signal", signal.SIGKILL))
            pending = None
        for rank, child in enumerate(children):
            if rank not in codes:
                done, status = os.waitpid(child, os.WNOHANG)
                if done:
                    codes[rank] = os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            for rank, child in enumerate(children):
                if rank not in codes:
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                    codes[rank] = -999
        time.sleep(0.005)
    del store
    return [codes[rank] for rank in range(ranks)]


if __name__ == "__main__":
    for number, job in enumerate(json.loads(Path(sys.argv[1]).read_text())):
        codes = run(job)
        (Path(job["bundle"]) / "codes.json").write_text(json.dumps(codes))
        print(number, Path(job["bundle"]).name, codes, flush=True)
