"""Chromium without a screen, driven over its debugging pipe: no port, no driver, nothing to install beside it."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import struct
import subprocess
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
PATIENCE_SECONDS = 300.0


def find() -> str | None:
    """Return the path of Chromium, None where it is not installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One browser with one tab; events are kept in ``events``."""

    def __init__(self, program: str) -> None:
        self.folder = tempfile.mkdtemp(prefix="browser-")
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        command = [program, *FLAGS, f"--user-data-dir={self.folder}", "about:blank"]
        # the browser reads commands from descriptor 3 and answers on 4
        script = f'exec 3<&{theirs_in} 4>&{theirs_out}; exec "$@"'
        self.process = subprocess.Popen(
            ["bash", "-c", script, "bash", *command],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": self.folder},
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self.events: list[dict[str, Any]] = []
        self._buffer = b""
        self._number = 0
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self._in)
        os.close(self._out)
        shutil.rmtree(self.folder, ignore_errors=True)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the answer of one command."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return dict(answer["result"])
            self.events.append(answer)

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE_SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            part = os.read(self._in, 1 << 20)
            assert part, "the browser ended"
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(line))

    def open(self, url: str) -> None:
        """Load a page and wait for its load event."""
        self.events.clear()
        self.call("Page.navigate", url=url)
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events):
            self.events.append(self._next())

    def requests(self) -> list[str]:
        """Return what was asked for since ``open``."""
        return [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]

    def complaints(self) -> list[str]:
        """Return console messages, log entries and exceptions since ``open``."""
        found = []
        for event in self.events:
            if event.get("method") == "Log.entryAdded":
                found.append(str(event["params"]["entry"]["text"]))
            elif event.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
                found.append(json.dumps(event["params"])[:500])
        return found

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def view(self, width: int, height: int, *, dark: bool = False, paper: bool = False) -> None:
        """Set the size of the window, the preferred colours and the medium."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        wanted = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", media="print" if paper else "screen", features=wanted)

    def picture(self, path: Path, selector: str) -> Picture:
        """Save the strip of the page, over its whole width, that holds an element as a PNG, and return it."""
        expression = f"(r => [r.top + scrollY, r.height])(document.querySelector({selector!r}).getBoundingClientRect())"
        top, height = self.evaluate(expression)
        width = self.evaluate("innerWidth")
        clip = {"x": 0, "y": top, "width": width, "height": height, "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))
        return Picture(path.read_bytes())


class Picture:
    """The pixels of a PNG as a browser writes them: 8 bits, three or four channels, not interlaced."""

    def __init__(self, data: bytes) -> None:
        self.width, self.height, depth, kind, _, _, interlaced = struct.unpack(">IIBBBBB", data[16:29])
        assert (depth, interlaced) == (8, 0)
        self.channels = {2: 3, 6: 4}[kind]
        packed, at = b"", 8
        while at < len(data):
            (size,) = struct.unpack(">I", data[at : at + 4])
            if data[at + 4 : at + 8] == b"IDAT":
                packed += data[at + 8 : at + 8 + size]
            at += size + 12
        self.rows = self._unfiltered(zlib.decompress(packed))

    def _unfiltered(self, raw: bytes) -> list[bytes]:
        import numpy as np

        stride, step = self.width * self.channels, self.channels
        above = np.zeros(stride, dtype=np.uint8)
        rows: list[bytes] = []
        for y in range(self.height):
            start = y * (stride + 1)
            kind = raw[start]
            row = np.frombuffer(raw, dtype=np.uint8, count=stride, offset=start + 1).copy()
            if kind == 2:
                row += above
            elif kind in (1, 3, 4):
                row = self._slow(kind, row, above, step)
            above = row
            rows.append(row.tobytes())
        return rows

    @staticmethod
    def _slow(kind: int, row: Any, above: Any, step: int) -> Any:
        import numpy as np

        values, up = row.tolist(), above.tolist()
        for i, value in enumerate(values):
            a = values[i - step] if i >= step else 0
            b, c = up[i], up[i - step] if i >= step else 0
            if kind == 1:
                guess = a
            elif kind == 3:
                guess = (a + b) // 2
            else:
                p = a + b - c
                guess = min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2]
            values[i] = (value + guess) & 255
        return np.array(values, dtype=np.uint8)

    def pixel(self, x: int, y: int) -> str:
        """Return a pixel as #rrggbb."""
        at = x * self.channels
        return "#" + self.rows[y][at : at + 3].hex()

    def colours(self, every: int = 3) -> set[str]:
        """Return the colours of a grid of pixels."""
        return {self.pixel(x, y) for y in range(0, self.height, every) for x in range(0, self.width, every)}
