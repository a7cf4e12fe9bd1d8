"""A real Slurm on the hosts of a lab cluster: munged, slurmctld on the first host, a slurmd on each.

Graphics cards are empty files, which Slurm counts like devices. Names of hosts resolve inside, through an /etc/hosts of
their own that only these processes see.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import lab

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "unshare", "mount")
READY_SECONDS, END_SECONDS = 90.0, 480.0
DONE = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL")


def missing() -> str | None:
    """Return why Slurm cannot be started here, None when it can."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"not installed: {', '.join(absent)}" if absent else lab.unavailable()


@dataclass
class Slurm:
    """Nodes that run, and how to give them work."""

    hosts: lab.Cluster
    folder: Path
    devices: dict[str, int]
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """What every command of Slurm needs."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def start(self) -> None:
        """Start the daemons; returns when every node is idle."""
        names = "".join(f"{self.hosts.addresses[name]} {name}\n" for name in self.devices)
        (self.folder / "hosts").write_text("127.0.0.1 localhost\n" + names)
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
        (self.folder / "slurm.conf").write_text(self._configuration())
        (self.folder / "gres.conf").write_text(self._cards())
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        first = next(iter(self.devices))
        munge = ["--foreground", "--force", "--key-file", str(key), "--socket", str(self.folder / "munge.socket")]
        files = [f"--{kind}-file={self.folder / f'munged.{kind}'}" for kind in ("log", "pid", "seed")]
        self._spawn(first, ["munged", *munge, *files], "munged")
        self._until((self.folder / "munge.socket").exists, "munged")
        self._spawn(first, ["slurmctld", "-D"], "slurmctld")
        for name in self.devices:
            self._spawn(name, ["slurmd", "-D", "-N", name], f"slurmd.{name}")
        wanted = sorted((name, "idle") for name in self.devices)
        self._until(lambda: self.nodes() == wanted, "the nodes")

    def nodes(self) -> list[tuple[str, str]]:
        """Return (name, state) of every node that answers."""
        done = self.call(["sinfo", "--noheader", "--Node", "--format=%N %t"])
        return sorted((line.split()[0], line.split()[1]) for line in done.stdout.splitlines() if len(line.split()) == 2)

    def call(self, argv: list[str], cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command of Slurm on the first host, as a user there would."""
        first = next(iter(self.devices))
        process = self._inside(first, argv, cwd or self.folder, variables, subprocess.PIPE)
        try:
            out, error = process.communicate(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            out, error = process.communicate()
        return subprocess.CompletedProcess(argv, process.returncode, out.decode(), error.decode())

    def state(self, job: str) -> str:
        """Return the states of a job's components, joined; one word when they agree."""
        done = self.call(["scontrol", "show", "job", job, "--oneliner"])
        words = done.stdout.split()
        return "+".join(sorted({word.partition("=")[2] for word in words if word.startswith("JobState=")}))

    def wait(self, job: str) -> str:
        """Return the state in which a job ended; CANCELLED if it does not."""
        end = time.monotonic() + END_SECONDS
        while time.monotonic() < end:
            state = self.state(job)
            if state and all(part in DONE for part in state.split("+")):
                return state
            time.sleep(0.5)
        self.call(["scancel", job])
        return f"still {self.state(job)} after {END_SECONDS:.0f} s"

    def close(self) -> None:
        """End the daemons, and with them every step."""
        for process in reversed(self.processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in reversed(self.processes):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _configuration(self) -> str:
        first = next(iter(self.devices))
        lines = [
            "ClusterName=lab",
            f"SlurmctldHost={first}({self.hosts.addresses[first]})",
            "SlurmUser=root",
            "SlurmdUser=root",
            "AuthType=auth/munge",
            f"AuthInfo=socket={self.folder / 'munge.socket'}",
            "ProctrackType=proctrack/pgid",
            "TaskPlugin=task/none",
            "MpiDefault=none",
            "SwitchType=switch/none",
            "ReturnToService=2",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_CPU",
            "SchedulerParameters=sched_interval=1,batch_sched_delay=0",
            "GresTypes=gpu",
            f"StateSaveLocation={self.folder / 'state'}",
            f"SlurmctldPidFile={self.folder / 'slurmctld.pid'}",
            f"SlurmdPidFile={self.folder / 'slurmd.%n.pid'}",
            f"SlurmdSpoolDir={self.folder / 'spool.%n'}",
            "SlurmctldDebug=info",
            "SlurmdDebug=info",
        ]
        processors = max(os.cpu_count() or 1, *self.devices.values())
        for name, count in self.devices.items():
            (self.folder / f"spool.{name}").mkdir()
            lines.append(
                f"NodeName={name} NodeHostname={name} NodeAddr={self.hosts.addresses[name]}"
                f" CPUs={processors} RealMemory=1000 Gres=gpu:lab:{count} State=UNKNOWN"
            )
        (self.folder / "state").mkdir()
        lines += [
            "SlurmdParameters=config_overrides",  # more processors than this machine has
            f"PartitionName=all Nodes={','.join(self.devices)} Default=YES MaxTime=INFINITE State=UP",
        ]
        return "\n".join(lines) + "\n"

    def _cards(self) -> str:
        lines = []
        for name, count in self.devices.items():
            for index in range(count):
                (self.folder / f"card.{name}.{index}").touch()
            files = f"{self.folder}/card.{name}.[0-{count - 1}]" if count > 1 else f"{self.folder}/card.{name}.0"
            lines.append(f"NodeName={name} Name=gpu Type=lab File={files}\n")
        return "".join(lines)

    def _spawn(self, host: str, argv: list[str], name: str) -> None:
        with (self.folder / f"{name}.out").open("wb") as out:
            self.processes.append(self._inside(host, argv, self.folder, {}, out))

    def _inside(
        self, host: str, argv: list[str], cwd: Path, variables: dict[str, str], out: object
    ) -> subprocess.Popen[bytes]:
        """Start a command that sees the lab's /etc/hosts in place of the machine's."""
        own = f'mount --bind "{self.folder / "hosts"}" /etc/hosts && exec "$@"'
        error = subprocess.STDOUT if out is not subprocess.PIPE else subprocess.PIPE
        process: subprocess.Popen[bytes] = self.hosts.popen(
            host,
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", own, "sh", *argv],
            self.environment | variables,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=error,
            start_new_session=True,
        )
        return process

    def _until(self, ready: object, what: str) -> None:
        assert callable(ready)
        end = time.monotonic() + READY_SECONDS
        while time.monotonic() < end:
            if ready():
                return
            for process in self.processes:
                if process.poll() is not None:
                    raise RuntimeError(f"{what}: a daemon of Slurm ended\n{self.told()}")
            time.sleep(0.1)
        raise RuntimeError(f"{what} did not come up within {READY_SECONDS:.0f} s\n{self.told()}")

    def told(self) -> str:
        """Return the last lines of every daemon."""
        ends = {p.name: p.read_text(errors="replace").splitlines()[-15:] for p in sorted(self.folder.glob("*.out"))}
        return "\n".join(f"--- {name}\n" + "\n".join(lines) for name, lines in ends.items())


@contextlib.contextmanager
def slurm_on(hosts: lab.Cluster, devices: dict[str, int], folder: Path) -> Iterator[Slurm]:
    """Yield a Slurm on hosts that stand, with so many cards each."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Slurm(hosts, folder, devices)
    try:
        made.start()
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def slurm(devices: dict[str, int], folder: Path) -> Iterator[Slurm]:
    """Yield a Slurm of one node for each name, with so many cards each."""
    spec = lab.Spec(hosts=tuple(lab.Host(name=name) for name in devices))
    with lab.cluster(spec) as hosts, slurm_on(hosts, devices, folder) as made:
        yield made
