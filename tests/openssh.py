"""Keys and settings of a real sshd that lets one key in, and of the ssh that has it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

SSHD = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
PRIVILEGE_FOLDER = Path("/run/sshd")


def missing() -> str | None:
    """Return why there is no sshd here, None when there is."""
    found = SSHD is not None and all(shutil.which(name) for name in ("ssh", "ssh-keygen"))
    return None if found else "openssh-server is not installed"


def write_settings(folder: Path, names: list[str], hosts: str) -> tuple[Path, Path]:
    """Return the files of settings of the server and of the client.

    Args:
        folder: where they and the keys are written.
        names: what the client knows the server's key by: names, or addresses where ``hosts`` gives some.
        hosts: ``Host`` sections of the client's file.

    """
    folder.mkdir(exist_ok=True)
    folder.chmod(0o700)
    if os.geteuid() == 0:
        PRIVILEGE_FOLDER.mkdir(mode=0o755, exist_ok=True)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    shutil.copyfile(folder / "user.pub", folder / "authorized")
    server, client = folder / "sshd_config", folder / "config"
    server.write_text(
        f"HostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized\nStrictModes no\nUsePAM no\n"
        "PermitRootLogin prohibit-password\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nPidFile none\n"
    )
    public = " ".join((folder / "host.pub").read_text().split()[:2])
    (folder / "known").write_text("".join(f"{name} {public}\n" for name in names))
    ours = f"Host *\n  IdentityFile {folder}/user\n  IdentitiesOnly yes\n  UserKnownHostsFile {folder}/known\n"
    client.write_text(hosts + ours)
    return server, client
