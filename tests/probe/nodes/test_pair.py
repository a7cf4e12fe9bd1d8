"""Both ends of a pair over real sockets of this machine."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from stratadvisor.probe.nodes import pair
from stratadvisor.probe.nodes.measured import link_of
from stratadvisor.probe.nodes.messages import Flow, Report
from stratadvisor.probe.nodes.transfer import receive_flow, send_flow

NONCE = "0123456789abcdef"
GENEROUS = 120.0


def listening() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def task(listener: socket.socket | None, limit: float = GENEROUS, nonce: str = NONCE) -> dict[str, Any]:
    address, port = listener.getsockname() if listener is not None else ("127.0.0.1", 1)
    return {
        "round": 3,
        "nonce": nonce,
        "seconds": 0.1,
        "limit": limit,
        "partner": 7,
        "address": address,
        "port": port,
    }


def test_both_ends_tell_the_same_story() -> None:
    with listening() as listener, ThreadPoolExecutor(1) as other:
        served = other.submit(pair.listen, listener, task(listener))
        led = pair.connect(task(listener))
        first, second = served.result(GENEROUS), led
    assert (first.status, second.status) == ("ok", "ok"), (first.reason, second.reason)
    link = link_of(3, "all", (0, 1), first, second)
    assert link.contradiction == ""
    assert link.forward > 0
    assert link.backward > 0
    assert first.received.total_bytes <= second.sent.total_bytes
    assert second.received.total_bytes <= first.sent.total_bytes
    assert 0 < link.latency_seconds < GENEROUS
    sizes = [size for size, _ in link.points]
    assert sizes == sorted(set(sizes)) == list(pair.MESSAGE_BYTES[: len(sizes)])
    assert first.interface == second.interface == "lo"


def test_a_process_that_is_gone_is_told_from_one_that_is_silent() -> None:
    with listening() as listener:
        gone = task(listener)
        silent = task(listener, limit=0.5)
        report = pair.connect(silent)  # the kernel takes the connection, and nobody answers
        assert (report.status, report.cause) == ("failed", "silent")
        assert "node 7" in report.reason
    report = pair.connect(gone)
    assert (report.status, report.cause) == ("failed", "refused")


def test_a_partner_that_never_comes_costs_the_limit() -> None:
    with listening() as listener:
        report = pair.listen(listener, task(listener, limit=0.3))
    assert (report.status, report.cause) == ("failed", "silent")


def test_a_partner_that_ends_in_the_middle_is_named() -> None:
    with listening() as listener, ThreadPoolExecutor(1) as other:
        served = other.submit(pair.listen, listener, task(listener))
        with socket.create_connection(listener.getsockname()) as channel:
            channel.sendall(NONCE.encode() + b"T")
            assert channel.recv(1) == b"!"
        report = served.result(GENEROUS)
    assert (report.status, report.cause) == ("failed", "reset")


def test_strangers_are_turned_away_and_the_partner_is_served() -> None:
    with listening() as listener, ThreadPoolExecutor(1) as other:
        served = other.submit(pair.listen, listener, task(listener))
        report = pair.connect(task(listener, nonce="f" * 16))
        assert (report.status, report.cause) == ("failed", "stranger")
        with socket.create_connection(listener.getsockname()) as channel:
            channel.sendall(b"GET / HTTP/1.0\r\n\r\n")
        led = pair.connect(task(listener))
        assert led.status == "ok", led.reason
        assert served.result(GENEROUS).status == "ok"


def test_the_receiver_ends_a_transfer_and_its_rate_leaves_out_the_start() -> None:
    """A sender that stops for longer than the start and then sends evenly: the rate is that of the even part."""
    near, far = socket.socketpair()
    step_bytes, pause = 16 * 1024, 0.01

    def evenly() -> None:
        try:
            near.sendall(b"x" * 1024 * 128)
            while True:
                time.sleep(pause)
                near.sendall(b"x" * step_bytes)
        except OSError:
            near.close()

    sender = threading.Thread(target=evenly)
    sender.start()
    flow = receive_flow([far], 0.5, time.monotonic() + GENEROUS)
    sender.join(GENEROUS)
    assert not sender.is_alive()
    # a sleep takes its time or longer, so the even part is at most this fast
    assert 0 < flow.steady_bytes_per_second <= step_bytes / pause * 1.5
    assert flow.total_bytes > 1024 * 128


def test_a_sender_ends_when_the_other_side_closes() -> None:
    near, far = socket.socketpair()
    with ThreadPoolExecutor(1) as other:
        sending = other.submit(send_flow, [near], time.monotonic() + GENEROUS)
        far.recv(1024)
        far.close()
        flow = sending.result(GENEROUS)
    assert flow.total_bytes >= 1024


@pytest.mark.parametrize(
    ("sent", "received", "word"),
    [
        (
            Flow(total_bytes=10**9, seconds=1.0),
            Flow(total_bytes=2 * 10**9, seconds=1.0, steady_bytes_per_second=1e9),
            "received",
        ),
        (Flow(total_bytes=10**9, seconds=1.0), Flow(), "nothing came"),
        (
            Flow(total_bytes=10**9, seconds=1.0),
            Flow(total_bytes=10**9, seconds=1.0, steady_bytes_per_second=9e9),
            "receives",
        ),
    ],
)
def test_stories_that_do_not_fit_are_contradictions(sent: Flow, received: Flow, word: str) -> None:
    good = Flow(total_bytes=10**9, seconds=1.0, steady_bytes_per_second=1e9)
    first = Report(round=0, nonce="", sent=sent, received=good)
    second = Report(round=0, nonce="", sent=Flow(total_bytes=10**9, seconds=1.0), received=received)
    link = link_of(0, "all", (4, 9), first, second)
    assert word in link.contradiction
    assert "node 9" in link.contradiction
