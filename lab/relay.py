"""Delay and loss for the links of a cluster: frames wait between two TAP devices. Standard library only.

One process serves all links of a cluster; it runs in the namespace of the switch and is started by ``lab.network``:

    python relay.py '[["a0", "b0", 0.005, 0.0], ...]'

Each entry names two devices to make, the delay of each direction in seconds and the share of frames to lose. It prints
``ready`` once the devices are there. A line ``INDEX DELAY LOSS`` on standard input changes a link. It ends with its
parent or when standard input closes, and the devices go with it.

The kernel's own netem does the same, but is missing from many kernels (small virtual machines, containers' hosts): one
way that works everywhere is easier to trust than two. Frames pass in the form of offloaded segments of up to 64 kB (the
virtio header goes through with them), so that even this program carries gigabits per second.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import select
import struct
import sys
import time
from collections import deque

_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_TAP, _NO_PI, _VNET_HDR = 0x0002, 0x1000, 0x4000
_CHECKSUM, _TCP4, _TCP6 = 1, 2, 4
_LARGEST = 65536 + 128
_FRAMES_IN_A_ROW = 32
_QUEUE_BYTES = 256 * 2**20
"""More than any link of the lab has under way; beyond it frames are dropped, as a full switch does."""


def _tap(name: str, *, segments: bool) -> int:
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TAP | _NO_PI | _VNET_HDR))
    fcntl.ioctl(device, _TUNSETOFFLOAD, (_CHECKSUM | _TCP4 | _TCP6) if segments else 0)
    return device


class _Direction:
    """Frames on their way from one device to the other."""

    def __init__(self, source: int, sink: int, delay_seconds: float, loss: float) -> None:
        self.source, self.sink = source, sink
        self.delay_seconds, self.loss = delay_seconds, loss
        self.waiting: deque[tuple[float, bytes]] = deque()
        self.waiting_bytes = 0

    def take(self) -> None:
        """Read what has come."""
        for _ in range(_FRAMES_IN_A_ROW):
            try:
                frame = os.read(self.source, _LARGEST)
            except BlockingIOError:
                return
            if random.random() < self.loss or self.waiting_bytes > _QUEUE_BYTES:  # noqa: S311
                continue
            self.waiting.append((time.monotonic() + self.delay_seconds, frame))
            self.waiting_bytes += len(frame)

    def give(self) -> float | None:
        """Write what is due; return when the next will be."""
        while self.waiting and self.waiting[0][0] <= time.monotonic():
            _, frame = self.waiting.popleft()
            self.waiting_bytes -= len(frame)
            with contextlib.suppress(OSError):  # a link that is down takes nothing
                os.write(self.sink, frame)
        return self.waiting[0][0] if self.waiting else None


def main() -> None:
    """Relay until the parent is gone."""
    parent = os.getppid()
    directions: list[_Direction] = []
    for one, other, delay_seconds, loss in json.loads(sys.argv[1]):
        segments = loss == 0  # what gets lost is a frame, not 64 kB
        a, b = _tap(one, segments=segments), _tap(other, segments=segments)
        directions += [_Direction(a, b, delay_seconds, loss), _Direction(b, a, delay_seconds, loss)]
    with contextlib.suppress(OSError):
        os.nice(-10)
    os.set_blocking(0, False)
    print("ready", flush=True)
    by_source = {direction.source: direction for direction in directions}
    while os.getppid() == parent:
        due = [when for when in (direction.give() for direction in directions) if when is not None]
        timeout = min([1.0, *(when - time.monotonic() for when in due)])
        readable, _, _ = select.select([0, *by_source], [], [], max(0.0, timeout))
        for source in readable:
            if source:
                by_source[source].take()
            elif not _obey(directions):
                return


def _obey(directions: list[_Direction]) -> bool:
    """Read changes from standard input; return whether it is still open."""
    text = os.read(0, 65536)
    for line in text.decode().splitlines():
        index, delay_seconds, loss = line.split()
        for direction in directions[2 * int(index) : 2 * int(index) + 2]:
            direction.delay_seconds, direction.loss = float(delay_seconds), float(loss)
    return bool(text)


if __name__ == "__main__":
    main()
