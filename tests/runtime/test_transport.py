from __future__ import annotations

import json
import socket
import threading
from dataclasses import replace
from typing import Any

import pytest
import torch
from runtime_bundle import configuration

from stratadvisor.runtime.async_sgd import Remote
from stratadvisor.runtime.config import LostError, parse
from stratadvisor.runtime.distributed import Context
from stratadvisor.runtime.parameter_server import Push
from stratadvisor.runtime.telemetry import FIELDS
from stratadvisor.runtime.transport import Address, LinkError, Listener, connect

WEIGHTS = 5


def accept_later(listener: Listener) -> tuple[threading.Thread, list[Any]]:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(listener.accept()), daemon=True)
    thread.start()
    return thread, found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_sent_arrives(dtype: torch.dtype) -> None:
    listener = Listener("127.0.0.1")
    thread, found = accept_later(listener)
    sender = connect(listener.address, {"worker": 3}, 10.0)
    thread.join()
    receiver, hello = found[0]
    assert hello["worker"] == 3
    sent = torch.randn(100_000, generator=torch.Generator().manual_seed(0)).to(dtype)
    writing = threading.Thread(target=sender.send, args=({"row": [1.5, float("nan")]}, sent))
    writing.start()
    header, received = receiver.receive(), torch.empty_like(sent)
    receiver.receive_into(received)
    writing.join()
    assert header["row"][0] == 1.5
    assert torch.equal(received, sent)
    sender.close()
    with pytest.raises(LinkError, match="closed the connection"):
        receiver.receive()
    receiver.close()
    listener.close()


def test_who_does_not_know_the_token_is_sent_away() -> None:
    listener = Listener("127.0.0.1")
    thread, found = accept_later(listener)
    stranger = connect(replace(listener.address, token="guessed"), {"worker": 1}, 10.0)
    with pytest.raises(LinkError):
        stranger.receive()
    thread.join()
    assert found == [None]
    listener.close()


def test_a_visitor_that_speaks_something_else_is_sent_away() -> None:
    listener = Listener("127.0.0.1")
    thread, found = accept_later(listener)
    with socket.create_connection(("127.0.0.1", listener.address.port)) as visitor:
        visitor.sendall(b"GET / HTTP/1.1\r\n\r\n")  # as a length, these four bytes mean half a gigabyte
        thread.join()
    assert found == [None]
    listener.close()


def test_an_address_survives_its_file_and_nothing_else_does() -> None:
    address = Address("host", 1234, "token")
    assert Address.from_json(address.to_json()) == address
    for text in ("[]", "{}", json.dumps({"host": "a", "port": 1})):
        with pytest.raises(ValueError, match="host, port and token"):
            Address.from_json(text)


def remote(address: Address) -> Remote:
    config = parse(configuration(engine="async_sgd", settings={"reconnect_seconds": 5}))
    context = Context(
        rank=1,
        local_rank=0,
        world_size=2,
        device=torch.device("cpu"),
        node_of_rank=(0, 0),
        group_of_rank=(0, 0),
        batch_of_rank=(4, 4),
        micro_batches=2,
        server=address,
    )
    return Remote(config, context, WEIGHTS, torch.float32)


def serve(listener: Listener, steps: int, *, pushes: int) -> None:
    """Welcome a worker, answer ``pushes`` of its gradients, then cut the connection."""
    found = listener.accept()
    assert found is not None
    link, hello = found
    link.send({"worker": hello["worker"], "shares": [4, 4], "groups": [0, 0]})
    assert link.receive() == {"ready": True}
    for number in range(pushes + 1):
        header = {
            "stop": False,
            "num_weights": WEIGHTS,
            "steps": steps + number,
            "local_steps": 1,
            "round": 0.0,
            "save": False,
        }
        link.send(header, torch.full((WEIGHTS,), float(steps + number)))
        link.receive()
        link.receive_into(torch.empty(WEIGHTS))
    link.close()


def test_a_worker_connects_again_after_a_cut_and_goes_on_where_the_server_stands() -> None:
    listener = Listener("127.0.0.1")
    worker = remote(listener.address)
    push = Push(worker=1, gradient=torch.ones(WEIGHTS), rows=torch.zeros(1, len(FIELDS), dtype=torch.float64))

    def two_connections() -> None:
        serve(listener, 7, pushes=1)
        serve(listener, 8, pushes=0)  # the gradient that was under way is lost: step 8 again

    server = threading.Thread(target=two_connections, daemon=True)
    server.start()
    answers = [worker.first(), worker.push(push), worker.push(push)]
    assert [answer.steps for answer in answers] == [7, 8, 8]
    assert [float(answer.reply.weights[0]) for answer in answers] == [7.0, 8.0, 8.0]
    listener.close()
    with pytest.raises(LostError, match="the server is gone"):
        worker.push(push)
    server.join()
