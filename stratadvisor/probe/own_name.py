"""Where a host's own name leads: many systems write it beside 127.0.1.1, which no other node reaches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from stratadvisor.probe.files import read_text
from stratadvisor.schema.profile import NicProfile, Verdict


def loopback_of(root: Path, hostname: str) -> str:
    """Return the loopback address that ``/etc/hosts`` gives the host's own name; empty for none."""
    for line in (read_text(root / "etc/hosts") or "").splitlines():
        address, *names = line.split("#", 1)[0].split() or [""]
        if hostname in names:  # the first entry wins, as in the resolver
            return address if address.startswith("127.") or address == "::1" else ""
    return ""


def own_name(root: Path, hostname: str, nics: tuple[NicProfile, ...]) -> Iterator[Verdict]:
    """Yield a finding where the own name leads to the loopback although the host has other addresses."""
    address = loopback_of(root, hostname)
    real = next((n for n in nics if n.up and n.kind not in ("loopback", "virtual") and n.addresses), None)
    if not address or real is None or hostname == "localhost":
        return
    yield Verdict(
        level="warning",
        subject=f"{hostname} name",
        message=f"/etc/hosts leads {hostname} to {address}: with several nodes, peers that ask for it are refused",
        advice=f"give {real.addresses[0]} as MASTER_ADDR and GLOO_SOCKET_IFNAME={real.name}, or correct /etc/hosts",
    )
