"""Faults while a bundle is run: two ranks on processors, gloo, the emitted launcher."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

from benchmarks.faults import rig
from benchmarks.faults.rig import Fault, Job, Seen

STALL = ["--stall-limit", "240"]
ENDLESS, SHORT = 100_000, 4
SITE = Path(next(p for p in sys.path if p.endswith("site-packages")))


@cache
def _bundle(folder: Path, strategy: str, layers: int) -> Path:
    """Write a bundle for two ranks on processors; its figures are any machine's."""
    from stratadvisor import pipeline
    from stratadvisor.schema.base import measured, reported
    from stratadvisor.schema.profile import (
        ClusterProfile,
        CpuProfile,
        DeviceProfile,
        HostMemoryProfile,
        NodeProfile,
    )
    from stratadvisor.schema.workload import ModelShape

    device = {
        "kind": "cpu",
        "name": "processor",
        "memory_total_bytes": reported(6 * 2**30),
        "memory_free_bytes": reported(6 * 2**30),
        "unified_memory": True,
        "matmul_flops_per_second": {"fp32": measured(5e10)},
        "memory_bandwidth_bytes_per_second": measured(8e9),
    }
    node = NodeProfile(
        hostname="made-up",
        devices=tuple(DeviceProfile.model_validate({**device, "index": i}) for i in range(2)),
        cpu=CpuProfile(usable_cores=reported(2)),
        host_memory=HostMemoryProfile(
            total_bytes=reported(16 * 2**30),
            available_bytes=reported(12 * 2**30),
            shared_memory_free_bytes=reported(2**30),
        ),
        intra_node_bytes_per_second=measured(1e9),
    )
    # embedding 256 x 64; a layer: attention 4 x 64 x 64, gated MLP 3 x 64 x 192, two norms; the last norm
    parameters = 256 * 64 + layers * (4 * 64 * 64 + 3 * 64 * 192 + 2 * 64) + 64
    model = ModelShape(
        name="tiny",
        source="made for this benchmark",
        num_parameters=parameters,
        num_active_parameters=parameters,
        num_layers=layers,
        hidden_size=64,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=16,
        ffn_hidden_size=192,
        vocab_size=256,
        tied_embeddings=True,
        max_sequence_length=64,
    )
    work = pipeline.make_workload(model, sequence_length=64, global_batch_size=8, precision="fp32", total_tokens="10M")
    target = folder.parent / f"bundle-{strategy}-{layers}"
    pipeline.write_bundle(pipeline.recommend(ClusterProfile(nodes=(node,)), work, strategy=strategy), target)
    return target


def bundle(folder: Path, strategy: str = "ddp", layers: int = 2) -> Path:
    """Return a fresh copy of a bundle."""
    target = folder / "bundle"
    shutil.copytree(_bundle(folder, strategy, layers), target)
    return target


def judged(seen: Seen, where: Path) -> Seen:
    """Add the cause that the result file names, and what is on disk."""
    result = where / "validation" / "result.json"
    steps = where / "validation" / "metrics.jsonl"
    kept = []
    if steps.is_file():
        done = steps.read_text(errors="replace").count('"event": "step"')
        kept += [f"{done} steps"] if done else []
    if (where / "validation" / "output.log").is_file():
        kept.append("log")
    if result.is_file():
        kept.append("result")
        first = json.loads(result.read_text())["results"][0]
        cause = first["cause"]
        seen.cause = first["outcome"] if cause is None else f"{cause['kind']}: {cause['summary']}"
    else:
        seen.cause = rig.sentence(seen.said) or f"died of {-seen.exit_code}"
    seen.kept = ", ".join(kept) or "bundle untouched"
    return seen


def run(
    folder: Path,
    *,
    within: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    steps: int = SHORT,
    more: Sequence[object] = (),
    injure: Callable[[Job, Path], float] | None = None,
    strategy: str = "ddp",
    prepare: Callable[[Path], object] | None = None,
    where: Path | None = None,
) -> Seen:
    """Run a bundle under a fault that is there from the start, or that ``injure`` causes on the way."""
    place = where if where is not None else bundle(folder, strategy)
    if prepare is not None:
        prepare(place)
    job = rig.start(
        rig.tool("run-config", place, "--steps", steps, *STALL, *more), folder, within=within, environ=environ
    )
    since = None
    try:
        if injure is not None:
            since = injure(job, place)
    finally:
        seen = job.finish(since)
    return judged(seen, place)


def training(job: Job, place: Path) -> None:
    """Wait until ranks have trained two steps."""
    metrics = place / "validation" / "metrics.jsonl"
    job.until(
        lambda: metrics.is_file() and metrics.read_text(errors="replace").count('"event": "step"') >= 2,
        "no step was done",
    )


def signalled(rank: int, number: signal.Signals) -> Callable[[Job, Path], float]:
    """Return an injury: a signal to a rank that trains."""

    def injure(job: Job, place: Path) -> float:
        training(job, place)
        return rig.send(job.rank(rank), number)

    return injure


def launcher(job: Job, place: Path) -> float:
    """Kill torchrun."""
    training(job, place)
    return rig.send(job.find(lambda p: "torch.distributed.run" in " ".join(p.cmdline())), signal.SIGKILL)


def tool_signalled(number: signal.Signals, *, early: bool = False) -> Callable[[Job, Path], float]:
    """Return an injury: a signal to run-config itself."""

    def injure(job: Job, place: Path) -> float:
        if early:
            job.find(lambda p: "launch.sh" in " ".join(p.cmdline()))
        else:
            training(job, place)
        os.kill(job.process.pid, number)
        return time.monotonic()

    return injure


def _interrupted_twice(job: Job, place: Path) -> float:
    training(job, place)
    begin = time.monotonic()
    for _ in range(2):
        os.kill(job.process.pid, signal.SIGINT)
        time.sleep(0.5)
    return begin


def _edit_program(line: str) -> Callable[[Path], object]:
    """Return a preparation: the training program begins with a line of its own."""

    def prepare(place: Path) -> None:
        program = place / "train.py"
        text = program.read_text()
        program.write_text(text.replace("import sys\n", f"{line}\nimport sys\n", 1))

    return prepare


def _no_link(job: Job, place: Path) -> float:
    training(job, place)
    rank = job.rank(1)
    os.system(f"nsenter --target {rank.pid} --net ip link set lo down")
    return time.monotonic()


def _memory(folder: Path) -> Seen:
    with rig.control_group("memory", {"memory.limit_in_bytes": 330 * 2**20}) as within:
        return run(folder, within=within)


def _processes(folder: Path) -> Seen:
    with rig.control_group("pids", {"pids.max": 6}) as within:
        return run(folder, within=within)


def _port(folder: Path) -> Seen:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = f"import socket as _s; _q = _s.socket(); _q.bind(('127.0.0.1', {port}))"
        return run(folder, prepare=_edit_program(line), more=["--accept-drift"])


def _twice(folder: Path) -> Seen:
    place = bundle(folder)
    first = rig.start(rig.tool("run-config", place, "--steps", ENDLESS, *STALL), folder)
    try:
        training(first, place)
        seen = rig.start(rig.tool("run-config", place, "--steps", SHORT), folder).finish()
        alive = first.process.poll() is None
        seen.cause, seen.kept = rig.sentence(seen.said), "the first run goes on" if alive else "the first run ended"
        return seen
    finally:
        first.process.send_signal(signal.SIGTERM)
        first.finish()


def _small_disk(folder: Path) -> Seen:
    place = bundle(folder)
    size = sum(p.stat().st_size for p in place.rglob("*") if p.is_file())
    pages = size // 4096 + sum(1 for _ in place.rglob("*")) + 8
    script = (
        f"mkdir {folder}/disk && mount -t tmpfs -o size={pages * 4096 + 16384} none {folder}/disk"
        f" && cp -r {place} {folder}/disk/bundle"
    )
    job = rig.start(
        rig.tool("run-config", folder / "disk" / "bundle", "--steps", ENDLESS, *STALL),
        folder,
        within=rig.mounting(script),
    )
    seen = job.finish()
    seen.cause, seen.kept = rig.sentence(seen.said), "answer on the screen"
    return seen


CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
#include <sys/time.h>
static int calls; /* the wall clock goes back a day after some calls, as after a wrong NTP answer */
int clock_gettime(clockid_t id, struct timespec *t) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int r = real(id, t);
    if (id == CLOCK_REALTIME && ++calls > 40) t->tv_sec -= 86400;
    return r;
}
"""


def clock_library(folder: Path) -> str:
    """Compile the library that lets the wall clock jump, and return its path."""
    source, library = folder / "clock.c", folder / "clock.so"
    source.write_text(CLOCK)
    if os.spawnlp(os.P_WAIT, "gcc", "gcc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"):
        raise RuntimeError("gcc could not compile the clock")
    return str(library)


HIDE_COMPILERS = "; ".join(
    f"[ ! -e {path} ] || mount --bind /dev/null {path}" for path in ("/usr/bin/g++", "/usr/bin/c++", "/usr/bin/gcc")
)
V = "validating"
FAULTS = (
    Fault(
        "rank-killed",
        V,
        "rank 1 dies",
        "SIGKILL to rank 1 after two steps",
        lambda f: run(f, steps=ENDLESS, injure=signalled(1, signal.SIGKILL)),
        r"^rank_died: rank 1 .*SIGKILL",
        (8,),
        "steps, log, result",
    ),
    Fault(
        "first-rank-killed",
        V,
        "rank 0 dies",
        "SIGKILL to rank 0 after two steps",
        lambda f: run(f, steps=ENDLESS, injure=signalled(0, signal.SIGKILL)),
        r"^rank_died: rank 0 .*SIGKILL",
        (8,),
        "steps, log, result",
    ),
    Fault(
        "rank-crashed",
        V,
        "a rank crashes",
        "SIGSEGV to rank 1 after two steps",
        lambda f: run(f, steps=ENDLESS, injure=signalled(1, signal.SIGSEGV)),
        r"^rank_died: rank 1 .*SIGSEGV",
        (8,),
        "steps, log, result",
    ),
    Fault(
        "rank-bus-error",
        V,
        "a rank meets a bus error",
        "SIGBUS to rank 1 after two steps",
        lambda f: run(f, steps=ENDLESS, injure=signalled(1, signal.SIGBUS)),
        r"^shared_memory_exhausted",
        (8,),
        "steps, log, result",
    ),
    Fault(
        "rank-stopped",
        V,
        "a rank hangs, the others wait in a collective",
        "SIGSTOP to rank 1 after two steps",
        lambda f: run(f, steps=ENDLESS, more=["--stall-limit", "40"], injure=signalled(1, signal.SIGSTOP)),
        r"^hang: .*rank 1 is stopped",
        (8,),
        "steps, log, result",
    ),
    Fault(
        "rank-sleeps",
        V,
        "a rank sleeps for ever before the group forms",
        "rank 1's program sleeps",
        lambda f: run(
            f,
            more=["--accept-drift", "--stall-limit", "45"],
            prepare=_edit_program("import os as _o, time as _t; _o.environ['RANK'] == '1' and _t.sleep(1e6)"),
        ),
        r"^hang",
        (8,),
        "log, result",
    ),
    Fault(
        "link-down",
        V,
        "the network goes away in the middle",
        "`ip link set lo down` in the run's own network namespace",
        lambda f: run(f, within=rig.own_network(), steps=ENDLESS, more=["--stall-limit", "40"], injure=_no_link),
        r"^(hang|network_interface)",
        (8,),
        "steps, log, result",
    ),
    Fault(
        "time-limit",
        V,
        "a run takes too long",
        "--time-limit 25 and endless steps",
        lambda f: run(f, steps=ENDLESS, more=["--time-limit", "25"]),
        r"^hang: .*time limit",
        (8,),
        "log, result",
    ),
    Fault(
        "launcher-killed",
        V,
        "the launcher dies",
        "SIGKILL to torchrun after two steps",
        lambda f: run(f, steps=ENDLESS, injure=launcher),
        r"^launcher_died: .*SIGKILL",
        (8,),
        "steps, log, result",
    ),
    Fault(
        "tool-interrupted",
        V,
        "Ctrl-C",
        "SIGINT to run-config after two steps",
        lambda f: run(f, steps=ENDLESS, injure=tool_signalled(signal.SIGINT)),
        r"^interrupted",
        (130,),
        "steps, log, result",
    ),
    Fault(
        "tool-interrupted-early",
        V,
        "Ctrl-C while ranks start",
        "SIGINT to run-config when launch.sh appears",
        lambda f: run(f, steps=ENDLESS, injure=tool_signalled(signal.SIGINT, early=True)),
        r"^interrupted",
        (130,),
        "log, result",
    ),
    Fault(
        "tool-terminated",
        V,
        "the scheduler ends the job",
        "SIGTERM to run-config after two steps",
        lambda f: run(f, steps=ENDLESS, injure=tool_signalled(signal.SIGTERM)),
        r"^interrupted",
        (130,),
        "steps, log, result",
    ),
    Fault(
        "tool-hung-up",
        V,
        "the terminal goes away",
        "SIGHUP to run-config after two steps",
        lambda f: run(f, steps=ENDLESS, injure=tool_signalled(signal.SIGHUP)),
        r"^interrupted",
        (130,),
        "steps, log, result",
    ),
    Fault(
        "tool-interrupted-twice",
        V,
        "Ctrl-C, and again while ranks are ended",
        "SIGINT to run-config after two steps and half a second later",
        lambda f: run(f, steps=ENDLESS, injure=_interrupted_twice),
        r"^interrupted",
        (130,),
        "steps, log",
    ),
    Fault(
        "tool-killed",
        V,
        "run-config itself is killed",
        "SIGKILL to run-config after two steps",
        lambda f: run(f, steps=ENDLESS, injure=tool_signalled(signal.SIGKILL)),
        r"^died of 9",
        (-9,),
        "steps, log",
    ),
    Fault(
        "host-memory-group",
        V,
        "host memory, a control group's limit",
        "cgroup memory.limit_in_bytes = 330 MiB",
        _memory,
        r"^host_out_of_memory",
        (8,),
        "log, result",
    ),
    Fault(
        "host-memory-address-space",
        V,
        "host memory, an allocation refused",
        "rank 1 sets RLIMIT_AS to 64 MiB above what it holds",
        lambda f: run(
            f,
            more=["--accept-drift"],
            prepare=_edit_program(
                "import resource as _r, torch; _r.setrlimit(_r.RLIMIT_AS, (64 << 20, 64 << 20)); torch.zeros(1 << 28)"
            ),
        ),
        r"^host_out_of_memory",
        (8,),
        "log, result",
    ),
    Fault(
        "shared-memory",
        V,
        "shared memory is full",
        "a tmpfs of 64 kB over /dev/shm; the program loads data with a worker",
        lambda f: run(
            f,
            more=["--accept-drift"],
            prepare=_edit_program(
                "import torch as _t; list(_t.utils.data.DataLoader(_t.zeros(64, 65536), batch_size=8, num_workers=1))"
            ),
            within=rig.mounting("mount -t tmpfs -o size=64k none /dev/shm"),
        ),
        r"^shared_memory_exhausted",
        (8,),
        "log, result",
    ),
    Fault(
        "process-limit", V, "no more processes", "cgroup pids.max = 6", _processes, r"^resource_limit", (8,), "result"
    ),
    Fault(
        "open-files",
        V,
        "no more open files",
        "RLIMIT_NOFILE = 24",
        lambda f: run(f, within=["prlimit", "--nofile=24"]),
        r"^resource_limit",
        (8,),
        "result",
    ),
    Fault(
        "disk-full",
        V,
        "the disk fills up",
        "a tmpfs of the bundle's size and four pages more",
        _small_disk,
        r"disk|space",
        (1, 8),
        "answer",
    ),
    Fault(
        "file-size",
        V,
        "files may not grow",
        "RLIMIT_FSIZE = 32 kB",
        lambda f: run(f, steps=ENDLESS, within=["prlimit", "--fsize=32768"]),
        r"^disk_full|File too large|resource_limit",
        (1, 8),
        "",
    ),
    Fault(
        "read-only-bundle",
        V,
        "the bundle cannot be written",
        "a read-only bind mount over it",
        lambda f: run(
            f, within=rig.mounting(f"mount --bind {f}/bundle {f}/bundle && mount -o remount,bind,ro {f}/bundle")
        ),
        r"cannot be made: Read-only file system",
        (1,),
        "untouched",
    ),
    Fault(
        "port-taken",
        V,
        "a port is taken",
        "a socket that listens there; the program binds it",
        _port,
        r"^port_in_use",
        (8,),
        "log, result",
    ),
    Fault(
        "wrong-interface",
        V,
        "the interface does not exist",
        "GLOO_SOCKET_IFNAME=nosuch0",
        lambda f: run(f, environ={"GLOO_SOCKET_IFNAME": "nosuch0"}),
        r"^network_interface",
        (8,),
        "log, result",
    ),
    Fault(
        "no-compiler",
        V,
        "no compiler for an operator built on first use",
        "/dev/null over g++, gcc and c++; the program builds one with torch's load_inline",
        lambda f: run(
            f,
            more=["--accept-drift"],
            prepare=_edit_program(
                "import torch.utils.cpp_extension as _c; _c.load_inline('op', 'int f() { return 1; }', functions=['f'])"
            ),
            within=rig.mounting(HIDE_COMPILERS),
            environ={"TORCH_EXTENSIONS_DIR": f"{f}/extensions"},
        ),
        r"^missing_compiler",
        (8,),
        "log, result",
    ),
    Fault(
        "versions-mixed",
        V,
        "parts of two releases of torch",
        "another version.py over torch's",
        lambda f: run(
            f,
            prepare=lambda _: (f / "version.py").write_text("__version__ = '2.0.0'\n"),
            within=rig.mounting(f"mount --bind {f}/version.py {SITE}/torch/version.py"),
        ),
        r"^version_mismatch",
        (8,),
        "log, result",
    ),
    Fault(
        "no-torch",
        V,
        "torch is not installed",
        "an empty folder over torch's",
        lambda f: run(
            f, prepare=lambda _: (f / "empty").mkdir(), within=rig.mounting(f"mount --bind {f}/empty {SITE}/torch")
        ),
        r"^missing_package",
        (8,),
        "log, result",
    ),
    Fault(
        "bad-configuration",
        V,
        "the configuration is damaged",
        "half of train_config.json, --accept-drift",
        lambda f: run(
            f,
            more=["--accept-drift"],
            prepare=lambda p: (p / "train_config.json").write_text((p / "train_config.json").read_text()[:200]),
        ),
        r"^bad_config",
        (8,),
        "log, result",
    ),
    Fault(
        "edited-bundle",
        V,
        "a file was edited since the plan",
        "a line more in train.py",
        lambda f: run(f, prepare=_edit_program("import os as _o")),
        r"edited since the plan: train\.py",
        (10,),
        "untouched",
    ),
    Fault(
        "empty-data",
        V,
        "the training text is empty",
        "--data with an empty file",
        lambda f: run(f, prepare=lambda _: (f / "empty.txt").write_text(""), more=["--data", f / "empty.txt"]),
        r"^bad_config",
        (8,),
        "log, result",
    ),
    Fault(
        "two-runs",
        V,
        "two run-config in one bundle",
        "a second one while the first trains",
        _twice,
        r"another run-config is running",
        (1,),
        "goes on",
    ),
    Fault(
        "unknown-end",
        V,
        "the program ends for no known reason",
        "exit code 3 and the line 'no errors'",
        lambda f: run(f, more=["--accept-drift"], prepare=_edit_program("print('no errors'); raise SystemExit(3)")),
        r"^unknown",
        (8,),
        "log, result",
    ),
    Fault(
        "clock-jump-run",
        V,
        "the wall clock goes back a day",
        "LD_PRELOAD of a clock_gettime that jumps",
        lambda f: run(f, environ={"LD_PRELOAD": clock_library(f)}),
        r"^completed",
        (0,),
        "4 steps, log, result",
    ),
)
