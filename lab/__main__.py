"""``python -m lab``: up, run, down, list, sweep. For people; programs use ``lab.cluster``."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from lab.cluster import cluster
from lab.cpu_group import controller
from lab.errors import LabError, SpecError
from lab.naming import alive, owner
from lab.place import Place
from lab.spec import read_spec
from lab.sweep import state_file, state_files, sweep

_UP_SECONDS = 60.0


def _names() -> list[str]:
    return [path.stem for path in state_files() if alive(path.stem)]


def _name(given: str | None) -> str:
    """Return the cluster meant: the one named, or the only one."""
    names = _names()
    if given is not None and given in names:
        return given
    if given is None and len(names) == 1:
        return names[0]
    listed = f"there are {', '.join(names)}" if names else "there is none"
    raise LabError(f"name the cluster with --name: {listed}" if given is None else f"no cluster {given}: {listed}")


def up(arguments: argparse.Namespace) -> int:
    """Start a keeper in the background that holds the cluster; print its name when it stands."""
    read_spec(arguments.spec)  # say what is wrong here rather than there
    keeper = subprocess.Popen(
        [sys.executable, "-m", "lab", "keep", str(arguments.spec.resolve())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=Path(__file__).resolve().parent.parent,
    )
    assert keeper.stdout is not None
    assert keeper.stderr is not None
    line = keeper.stdout.readline()
    if not line:
        raise LabError(keeper.stderr.read().strip() or "the keeper of the cluster ended")
    print(line, end="")
    return 0


def keep(arguments: argparse.Namespace) -> int:
    """Hold a cluster until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with cluster(read_spec(arguments.spec)) as standing:
        print(standing.name, *(f"{host}={ip}" for host, ip in standing.addresses.items()), flush=True)
        nowhere = os.open(os.devnull, os.O_RDWR)  # the caller goes away
        for stream in (1, 2):
            os.dup2(nowhere, stream)
        while True:
            signal.pause()


def run(arguments: argparse.Namespace) -> int:
    """Run a command on a host and end with its status."""
    name = _name(arguments.name)
    hosts = {host["name"]: host for host in json.loads(state_file(name).read_text())["hosts"]}
    if arguments.host not in hosts:
        raise LabError(f"there is no host {arguments.host!r}; there are {', '.join(hosts)}")
    if not arguments.command:
        raise LabError("name a command: python -m lab run h1 -- ip address")
    where, namespace = controller(), f"{name}.{arguments.host}"
    cores = hosts[arguments.host]["cores"]
    place = Place(
        host=arguments.host,
        namespace=namespace,
        members=None if where is None else where.folder / namespace / "cgroup.procs",
        cores=None if cores is None else tuple(cores),
    )
    command = arguments.command[1:] if arguments.command[0] == "--" else arguments.command
    return subprocess.call([*place.words(), *command])


def down(arguments: argparse.Namespace) -> int:
    """End the keeper, which takes its cluster away."""
    name = _name(arguments.name)
    os.kill(owner(name), signal.SIGTERM)
    end = time.monotonic() + _UP_SECONDS
    while alive(name):
        if time.monotonic() > end:
            raise LabError(f"the keeper of {name} (process {owner(name)}) does not end")
        time.sleep(0.02)
    return 0


def show(arguments: argparse.Namespace) -> int:
    """List the clusters that stand."""
    del arguments
    for name in _names():
        hosts = json.loads(state_file(name).read_text())["hosts"]
        print(name, *(host["name"] for host in hosts))
    return 0


def clean(arguments: argparse.Namespace) -> int:
    """Remove what dead owners left."""
    del arguments
    for name in sweep():
        print(f"removed {name}")
    return 0


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m lab", description="A cluster of shaped hosts on this machine.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, action, what in (
        ("up", up, "lay a cluster out and leave it standing"),
        ("keep", keep, "the same, in the foreground, until SIGTERM"),
    ):
        command = commands.add_parser(name, help=what, description=what)
        command.add_argument("spec", type=Path, help="the cluster as TOML")
        command.set_defaults(action=action)
    command = commands.add_parser("run", help="run a command on a host", description="run a command on a host")
    command.add_argument("--name", help="the cluster, when several stand")
    command.add_argument("host")
    command.add_argument("command", nargs=argparse.REMAINDER, help="-- the command and its arguments")
    command.set_defaults(action=run)
    command = commands.add_parser("down", help="take a cluster away", description="take a cluster away")
    command.add_argument("name", nargs="?", help="the cluster, when several stand")
    command.set_defaults(action=down)
    for name, action, what in (("list", show, "list the clusters"), ("sweep", clean, "remove what dead owners left")):
        commands.add_parser(name, help=what, description=what).set_defaults(action=action)
    arguments = parser.parse_args()
    try:
        return int(arguments.action(arguments))
    except SpecError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    except LabError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
