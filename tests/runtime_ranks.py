"""Run training jobs as forked ranks: starting an interpreter with torch for each rank costs more than training here.

    python runtime_ranks.py FILE

FILE: JSON list of jobs {"bundle", "arguments", "ranks", "program", "events", "limit_file_bytes", "script", "path"};
exit codes of the ranks go to codes.json in each bundle, what they print to rank-N.log. Events happen one after the
other, each when the log has so many ``steps``, or ``text`` was printed by rank ``log``, or ``seconds`` after the last
one: the ranks in ``to`` (else all) get a ``signal``, or one more rank starts and joins (``join``). A ``script`` runs
with the runtime below ``path`` in the place of a program.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import runtime_equal
import torch
import torch._dynamo  # what optimizers and engines import late, once for all ranks: two seconds each
import torch.distributed as dist

from stratadvisor.runtime import async_sgd, diloco, fsdp, hierarchical, library  # noqa: F401
from stratadvisor.runtime.program import main

WAIT_SECONDS = 300


def rank_process(job: dict[str, Any], rank: int, port: str | None) -> int:
    """Be one rank, without a port one that joins; return the exit code."""
    log = os.open(Path(job["bundle"]) / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    arguments = job["arguments"]
    if port is None:
        arguments = [*arguments, "--join", str(Path(job["bundle"]) / "run" / "server.json")]
    else:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(job["ranks"]), LOCAL_WORLD_SIZE="1")
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, TORCHELASTIC_USE_AGENT_STORE="True")
    if limit := job.get("limit_file_bytes"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    if "script" in job:
        sys.path.insert(0, job["path"])
        os.environ["STRATADVISOR_STEPS"] = job["arguments"][1]
        torch.manual_seed(0)
        library.run_script(Path(job["script"]), Path(job["bundle"]))
        return 0
    build_model, build_data = runtime_equal.PROGRAMS[job.get("program", "default")]
    return main(build_model, build_data, Path(job["bundle"]), [str(a) for a in arguments])


def start(job: dict[str, Any], rank: int, port_pipe: int | None) -> int:
    """Fork a rank, which waits for the port of the store unless it joins; return its process id."""
    child = os.fork()
    if child:
        return child
    code = 99
    try:
        code = rank_process(job, rank, None if port_pipe is None else os.read(port_pipe, 16).decode())
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def is_due(event: dict[str, Any], bundle: Path, before: int, since: float) -> bool:
    """Return whether it is time for an event."""
    if "seconds" in event:
        return time.monotonic() - since >= event["seconds"]
    if "steps" in event:
        path = bundle / "run" / "metrics.jsonl"
        return path.is_file() and path.read_text().count('"event": "step"') - before >= event["steps"]
    path = bundle / f"rank-{event['log']}.log"
    return path.is_file() and event["text"] in path.read_text()


def run(job: dict[str, Any]) -> list[int]:
    """Run one job; return the exit codes by rank, negative for a signal."""
    bundle, ranks = Path(job["bundle"]), int(job.setdefault("ranks", 2))
    metrics = bundle / "run" / "metrics.jsonl"
    resumed = "--resume" in job["arguments"] and metrics.is_file()
    before = metrics.read_text().count('"event": "step"') if resumed else 0
    if not resumed:
        metrics.unlink(missing_ok=True)
    pipes = [os.pipe() for _ in range(ranks)]
    children = [start(job, rank, pipes[rank][0]) for rank in range(ranks)]
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for read, write in pipes:
        os.write(write, str(store.port).encode())
        os.close(write)
        os.close(read)
    codes: dict[int, int] = {}
    waiting = list(job.get("events", []))
    since = time.monotonic()
    deadline = since + WAIT_SECONDS
    while len(codes) < len(children):
        if waiting and is_due(waiting[0], bundle, before, since):
            event = waiting.pop(0)
            since = time.monotonic()
            if "join" in event:
                children.append(start(job, len(children), None))
            for rank in event.get("to", range(len(children))) if "signal" in event else ():
                if rank not in codes:
                    os.kill(children[rank], event["signal"])
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
    return [codes[rank] for rank in range(len(children))]


if __name__ == "__main__":
    for number, job in enumerate(json.loads(Path(sys.argv[1]).read_text())):
        codes = run(job)
        (Path(job["bundle"]) / "codes.json").write_text(json.dumps(codes))
        print(number, Path(job["bundle"]).name, codes, flush=True)
