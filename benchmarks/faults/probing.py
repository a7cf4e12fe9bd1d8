"""Faults while a machine is measured; devices come from a C double of libnvidia-ml, all else is this machine."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from benchmarks.faults import rig
from benchmarks.faults.rig import Fault, Job, Seen
from benchmarks.faults.validating import SITE, clock_library

DOUBLE = rig.ROOT / "tests" / "nvml_double"
READ = ["--only", "host_cpu", "--only", "host_memory", "--only", "nics", "--only", "software"]
MEASURE = [*READ, "--only", "compute", "--quick"]
TOGETHER = [*READ, "--only", "collectives"]
CARD = """device
  name NVIDIA A100-PCIE-40GB
  uuid GPU-0000008{number}-1c0f-4a51-9d3e-01234567898{number}
  bus 00000000:{number}1:00.0
  memory_mib 40960 40442
  compute_capability 8 0
  ecc 1 1
  mig 0 0
  compute_mode 0
"""


def described(seen: Seen, profile: Path, watched: str) -> Seen:
    """Add what a sub-probe's observation says, and what else was found."""
    if not profile.is_file():
        seen.cause = rig.sentence(seen.said) or f"died of {-seen.exit_code}"
        seen.kept = "no half profile" if not list(profile.parent.glob(f".{profile.name}*")) else "a temporary file"
        return seen
    data = json.loads(profile.read_text())
    notes = data["observations"]
    told = [o for o in notes if re.fullmatch(watched, o["probe"])]
    about = list(dict.fromkeys(f"{o['probe']} {o['status']}: {o['reason']}".rstrip(": ") for o in told))
    if "verdict" in watched:
        about += [f"verdict: {v['message']}" for v in data["verdicts"]]
    if "host_memory" in watched:
        memory = data["nodes"][0]["host_memory"]
        about += [f"{name}: {r['detail']}" for name, r in memory.items() if isinstance(r, dict) and r["value"] is None]
    health = [d["health_reason"] for n in data["nodes"] for d in n["devices"] if d["health_reason"]]
    seen.cause = "; ".join((*about, *health))[:400]
    good = [o["probe"] for o in notes if o["status"] == "ok"]
    devices = sum(d["healthy"] is not False for n in data["nodes"] for d in n["devices"])
    seen.kept = f"{len(good)} sub-probes, {devices} usable devices"
    return seen


def run(
    folder: Path,
    *options: object,
    watched: str = "-",
    within: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    injure: Callable[[Job], float] | None = None,
    output: Path | None = None,
) -> Seen:
    """Probe under a fault that is there from the start, or that ``injure`` causes on the way."""
    profile = output or folder / "cluster.json"
    command = rig.tool("probe", "--time-limit", 200, *(options or READ), "--output", profile)
    job = rig.start(command, folder, within=within, environ=environ)
    since = None
    try:
        if injure is not None:
            since = injure(job)
    finally:
        seen = job.finish(since)
    return described(seen, profile, watched)


def member(number: signal.Signals, doing: str = "matrix products") -> Callable[[Job], float]:
    """Return an injury: a signal to a measuring process while ``doing`` is shown as the current step."""

    def injure(job: Job) -> float:
        job.until(lambda: doing in job.errors.read_text(), f"{doing} was not begun")
        found = job.find(lambda p: "crew_member" in " ".join(p.cmdline()) and p.memory_info().rss > 60 * 2**20)
        return rig.send(found, number)

    return injure


def tool_signalled(number: signal.Signals, doing: str) -> Callable[[Job], float]:
    """Return an injury: a signal to the probe itself."""

    def injure(job: Job) -> float:
        job.until(lambda: doing in job.errors.read_text(), f"{doing} was not begun")
        job.find(lambda p: "crew_member" in " ".join(p.cmdline()))
        os.kill(job.process.pid, number)
        return time.monotonic()

    return injure


def devices(folder: Path, machine: str, *options: object, injure: Callable[[Job], float] | None = None) -> Seen:
    """Probe a machine of the double: the name of a description beside it, or a description."""
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-w", "-shared", "-fPIC", "-o", library, DOUBLE / "nvml_double.c"], check=True)
    text = machine if "\n" in machine else (DOUBLE / "machines" / f"{machine}.txt").read_text()
    (folder / "machine.txt").write_text(text)
    environ = {"LD_LIBRARY_PATH": str(folder), "NVML_DOUBLE_MACHINE": str(folder / "machine.txt")}
    return run(folder, *READ, "--only", "nvml", *options, watched="nvml", environ=environ, injure=injure)


def _member_of_nvml(number: signal.Signals) -> Callable[[Job], float]:
    def injure(job: Job) -> float:
        job.until(lambda: "NVIDIA devices" in job.errors.read_text(), "the devices were not asked")
        time.sleep(2)  # the double answers the name after a long time: now it is being asked
        return rig.send(job.find(lambda p: "crew_member" in " ".join(p.cmdline())), number)

    return injure


def _memory(folder: Path) -> Seen:
    with rig.control_group("memory", {"memory.limit_in_bytes": 190 * 2**20}) as within:
        return run(folder, *MEASURE, watched="torch_devices|compute", within=within)


def _processes(folder: Path) -> Seen:
    with rig.control_group("pids", {"pids.max": 2}) as within:
        return run(folder, *MEASURE, watched="torch_devices|compute", within=within)


def _two(folder: Path) -> Seen:
    first = rig.start(rig.tool("probe", *MEASURE, "--output", folder / "first.json"), folder)
    seen = run(folder, *MEASURE, watched="verdict|compute")
    other = first.finish()
    seen.kept += f"; the other probe ended with {other.exit_code}"
    return seen


def _silent_host(folder: Path) -> Seen:
    """A server that takes the connection and never answers, as a node that hangs in its kernel."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        ssh = f"ssh -p {silent.getsockname()[1]} -F none -o ConnectTimeout=600"
        return run(folder, *READ, "--hosts", "127.0.0.1", "--ssh", ssh, "--time-limit", "12")


def _refusing_host(folder: Path) -> Seen:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens: the port is ours and closed
        return run(folder, *READ, "--hosts", "127.0.0.1", "--ssh", f"ssh -p {taken.getsockname()[1]} -F none")


def _gone_output(folder: Path) -> Seen:
    place = folder / "place"
    place.mkdir()

    def injure(job: Job) -> float:
        job.find(lambda p: "crew_member" in " ".join(p.cmdline()))
        place.rmdir()
        return time.monotonic()

    return run(folder, *MEASURE, injure=injure, output=place / "cluster.json")


def usable(process: psutil.Process) -> bool:
    """Return whether a process runs."""
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


LOST = CARD.format(number=1) + "  lost_after {after}\n" + CARD.format(number=2)
NO_CAPABILITIES = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
P = "measuring"
FAULTS = (
    Fault(
        "device-vanishes",
        P,
        "a device is lost while it is read (XID 79)",
        "NVML double: error 15 after 12 questions",
        lambda f: devices(f, LOST.format(after=12)),
        r"lost",
        (0,),
        "1 usable",
    ),
    Fault(
        "device-vanishes-at-once",
        P,
        "a device is lost before it is read",
        "NVML double: error 15 from the first question",
        lambda f: devices(f, LOST.format(after=0)),
        r"lost",
        (0,),
        "1 usable",
    ),
    Fault(
        "device-hangs",
        P,
        "the driver hangs",
        "NVML double: a question takes a quarter of an hour",
        lambda f: devices(f, "rtx2080ti_hanging"),
        r"timed_out|no answer|did not answer",
        (0,),
        "sub-probes",
    ),
    Fault(
        "driver-mismatch",
        P,
        "driver and library differ",
        "NVML double: init gives error 18",
        lambda f: devices(f, "driver_mismatch"),
        r"differ, as after an upgrade",
        (0,),
        "4 sub-probes",
    ),
    Fault(
        "device-no-permission",
        P,
        "no permission to ask the driver",
        "NVML double: error 4",
        lambda f: devices(f, "no_permission"),
        r"denied: .*may not be opened by this user",
        (0,),
        "4 sub-probes",
    ),
    Fault(
        "driver-crashes",
        P,
        "the driver library crashes its process",
        "SIGSEGV to the process that asks",
        lambda f: devices(f, "rtx2080ti_hanging", injure=_member_of_nvml(signal.SIGSEGV)),
        r"failed: .*SIGSEGV",
        (0,),
        "4 sub-probes",
    ),
    Fault(
        "measuring-killed",
        P,
        "a measuring process is killed",
        "SIGKILL to it while it multiplies matrices",
        lambda f: run(f, *MEASURE, watched="compute", injure=member(signal.SIGKILL)),
        r"SIGKILL",
        (0,),
        "sub-probes",
    ),
    Fault(
        "measuring-crashes",
        P,
        "a measuring process crashes",
        "SIGSEGV to it while it multiplies matrices",
        lambda f: run(f, *MEASURE, watched="compute", injure=member(signal.SIGSEGV)),
        r"SIGSEGV",
        (0,),
        "sub-probes",
    ),
    Fault(
        "measuring-stops",
        P,
        "a measuring process hangs",
        "SIGSTOP to it while it multiplies matrices",
        lambda f: run(f, *MEASURE, watched="compute", injure=member(signal.SIGSTOP)),
        r"no answer within",
        (0,),
        "sub-probes",
    ),
    Fault(
        "collective-hangs",
        P,
        "a rank hangs in an all-reduce",
        "SIGSTOP to it while the all-reduce is measured",
        lambda f: run(f, *TOGETHER, watched="collectives", injure=member(signal.SIGSTOP, "all-reduce")),
        r"collectives timed_out: .*no answer within",
        (0,),
        "sub-probes",
    ),
    Fault(
        "collective-rank-killed",
        P,
        "a rank dies in an all-reduce",
        "SIGKILL to it while the all-reduce is measured",
        lambda f: run(f, *TOGETHER, watched="collectives", injure=member(signal.SIGKILL, "all-reduce")),
        r"collectives failed: .*SIGKILL",
        (0,),
        "sub-probes",
    ),
    Fault(
        "probe-interrupted",
        P,
        "Ctrl-C",
        "SIGINT while matrices are multiplied",
        lambda f: run(f, *MEASURE, injure=tool_signalled(signal.SIGINT, "matrix products")),
        r"interrupted",
        (130,),
        "no half",
    ),
    Fault(
        "probe-interrupted-early",
        P,
        "Ctrl-C at once",
        "SIGINT while processors are read",
        lambda f: run(f, *MEASURE, injure=tool_signalled(signal.SIGINT, "processors")),
        r"interrupted",
        (130,),
        "no half",
    ),
    Fault(
        "probe-terminated",
        P,
        "the scheduler ends the job",
        "SIGTERM while matrices are multiplied",
        lambda f: run(f, *MEASURE, injure=tool_signalled(signal.SIGTERM, "matrix products")),
        r"interrupted",
        (130,),
        "no half",
    ),
    Fault(
        "probe-killed",
        P,
        "the probe itself is killed",
        "SIGKILL while matrices are multiplied",
        lambda f: run(f, *MEASURE, injure=tool_signalled(signal.SIGKILL, "matrix products")),
        r"died of 9",
        (-9,),
        "no half",
    ),
    Fault(
        "probe-memory",
        P,
        "host memory, a control group's limit",
        "cgroup memory.limit_in_bytes = 190 MiB",
        _memory,
        r"compute failed: .*(lack of|out of) memory",
        (0,),
        "sub-probes",
    ),
    Fault(
        "probe-processes",
        P,
        "no more processes",
        "cgroup pids.max = 2",
        _processes,
        r"can be started: Resource temporarily unavailable",
        (0,),
        "sub-probes",
    ),
    Fault(
        "probe-open-files",
        P,
        "no more open files",
        "RLIMIT_NOFILE = 10",
        lambda f: run(f, *MEASURE, within=["prlimit", "--nofile=10"], watched="torch_devices|compute"),
        r"Too many open files",
        (0,),
        "sub-probes",
    ),
    Fault(
        "probe-address-space",
        P,
        "no more address space",
        "RLIMIT_AS = 400 MiB",
        lambda f: run(f, *MEASURE, watched="torch_devices|compute", within=["prlimit", f"--as={400 * 2**20}"]),
        r"(?i)memory|map segment|bad_alloc|thread",
        (0,),
        "sub-probes",
    ),
    Fault(
        "no-shared-memory",
        P,
        "no /dev/shm",
        "an empty read-only file system in its place",
        lambda f: run(
            f,
            *READ,
            "--only",
            "data_feed",
            "--quick",
            watched="data_feed|host_memory",
            within=rig.mounting("umount -l /dev/shm && mount -t tmpfs -o size=4k,ro none /dev/shm"),
        ),
        r"data_feed failed: .*Read-only",
        (0,),
        "sub-probes",
    ),
    Fault(
        "small-shared-memory",
        P,
        "a /dev/shm of 64 kB",
        "a tmpfs of that size over it",
        lambda f: run(
            f,
            *READ,
            "--only",
            "data_feed",
            "--quick",
            watched="data_feed",
            within=rig.mounting("mount -t tmpfs -o size=64k none /dev/shm"),
        ),
        r"(?i)shared memory|shm|No space left|[Bb]us error",
        (0,),
        "sub-probes",
    ),
    Fault(
        "probe-disk-full",
        P,
        "no room for the profile",
        "a tmpfs of one page as the output folder",
        lambda f: run(
            f,
            output=f / "disk" / "cluster.json",
            within=rig.mounting(f"mkdir {f}/disk && mount -t tmpfs -o size=4k none {f}/disk"),
        ),
        r"cannot be written: No space left",
        (1,),
        "no half",
    ),
    Fault(
        "probe-read-only",
        P,
        "the output folder is read-only",
        "a read-only tmpfs",
        lambda f: run(
            f,
            output=f / "disk" / "cluster.json",
            within=rig.mounting(f"mkdir {f}/disk && mount -t tmpfs -o ro none {f}/disk"),
        ),
        r"cannot be written: Read-only",
        (1,),
        "no half",
    ),
    Fault(
        "output-vanishes",
        P,
        "the output folder is removed meanwhile",
        "rmdir while measuring",
        _gone_output,
        r"place is not a directory",
        (1,),
        "no half",
    ),
    Fault(
        "read-only-everything",
        P,
        "a container with a read-only root, no /tmp, no home",
        "read-only bind mounts; the output folder alone writable",
        lambda f: run(
            f,
            *MEASURE,
            "--only",
            "collectives",
            watched="compute|collectives",
            output=f / "out" / "cluster.json",
            environ={"HOME": "/nonexistent"},
            within=rig.mounting(
                f"mkdir {f}/out && mount --bind {f}/out {f}/out && mount -o remount,bind,ro /"
                " && mount -t tmpfs -o ro none /dev/shm"
            ),
        ),
        r"failed: .*(Read-only|store)",
        (0,),
        "sub-probes",
    ),
    Fault(
        "no-capabilities",
        P,
        "a container without capabilities",
        "setpriv: no capability, no new privileges",
        lambda f: run(f, *MEASURE, watched="compute", within=NO_CAPABILITIES),
        r"compute ok",
        (0,),
        "sub-probes",
    ),
    Fault(
        "no-proc",
        P,
        "no /proc",
        "an empty read-only tmpfs over it",
        lambda f: run(f, watched="host_memory", within=rig.mounting("mount -t tmpfs -o ro none /proc")),
        r"/proc/meminfo could not be read",
        (0,),
        "sub-probes",
    ),
    Fault(
        "no-sys",
        P,
        "no /sys",
        "an empty read-only tmpfs over it",
        lambda f: run(f, watched="nics", within=rig.mounting("mount -t tmpfs -o ro none /sys")),
        r"/sys/class/net is not there",
        (0,),
        "sub-probes",
    ),
    Fault(
        "no-network",
        P,
        "no interface but a loopback that is down",
        "a network namespace of its own",
        lambda f: run(
            f, *READ, "--only", "collectives", "--quick", watched="collectives", within=rig.own_network("true")
        ),
        r"collectives failed: .*Unable to find address",
        (0,),
        "sub-probes",
    ),
    Fault(
        "probe-no-torch",
        P,
        "torch is damaged",
        "an empty folder over torch's",
        lambda f: run(
            f,
            *MEASURE,
            watched="compute|torch_devices",
            within=rig.mounting(f"mkdir {f}/e && mount --bind {f}/e {SITE}/torch"),
        ),
        r"compute failed: .*(no attribute|No module)",
        (0,),
        "sub-probes",
    ),
    Fault(
        "two-probes",
        P,
        "two probes at once on the same devices",
        "a second one started at the same time",
        _two,
        r"another probe measured here at the same time",
        (0,),
        "ended with 0",
    ),
    Fault(
        "clock-jump-probe",
        P,
        "the wall clock goes back a day",
        "LD_PRELOAD of a clock_gettime that jumps",
        lambda f: run(f, *MEASURE, watched="compute", environ={"LD_PRELOAD": clock_library(f)}),
        r"compute ok",
        (0,),
        "sub-probes",
    ),
    Fault(
        "ssh-silent",
        P,
        "a node takes the connection and never answers",
        "a socket that listens and is silent",
        _silent_host,
        r"127\.0\.0\.1",
        (3,),
        "no half",
    ),
    Fault(
        "ssh-refused",
        P,
        "a node refuses the connection",
        "a port where nobody listens",
        _refusing_host,
        r"127\.0\.0\.1.*refused",
        (3,),
        "no half",
    ),
)
