from __future__ import annotations

import random
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stratadvisor.runtime.parameter_server import Compensation, ParameterServer, Phases, Push, Reply


def row(tokens: float = 1.0, stop: bool = False) -> torch.Tensor:
    return torch.tensor([[0.0, tokens, 0.0, 0.0, 0.0, 0.0, 0.0, float(stop)]], dtype=torch.float64)


class Recorder:
    """A server of plain SGD with rate 1 on one number, and what it applied."""

    def __init__(
        self, num_workers: int, phases: Phases, compensation: Compensation | None = None, local_steps: int = 1
    ) -> None:
        self.pushes: list[Push] = []
        self.updates = 0
        self.server = ParameterServer(
            weights=torch.zeros(1),
            num_workers=num_workers,
            phases=phases,
            compensation=compensation or Compensation(strength=0.0),
            step=self._step,
            on_applied=self._note,
            local_steps=lambda _: local_steps,
        )
        self.server.start()

    def _step(self, gradient: torch.Tensor, _: float, factor: float, __: int) -> None:
        self.server.weights.sub_(gradient, alpha=factor)
        self.updates += 1

    def _note(self, pushes: list[Push], _: int) -> None:
        self.pushes += pushes


def test_compensation_is_the_first_order_change_of_the_gradient() -> None:
    gradient, now, read = torch.tensor([2.0, -1.0]), torch.tensor([1.0, 1.0]), torch.tensor([0.5, 3.0])
    plain = Compensation(strength=0.04).apply(gradient, now, read, None)
    # g + 0.04 g g (now - read)
    assert torch.allclose(plain, torch.tensor([2 + 0.04 * 4 * 0.5, -1 + 0.04 * 1 * -2.0]))


def test_adaptive_compensation_divides_by_the_root_of_the_mean_square() -> None:
    gradient, now, read = torch.tensor([2.0]), torch.tensor([1.0]), torch.tensor([0.5])
    mean_square = torch.tensor([3.0])
    result = Compensation(strength=2.0, adaptive=True).apply(gradient, now, read, mean_square)
    expected_square = 0.95 * 3 + 0.05 * 4
    assert torch.allclose(mean_square, torch.tensor([expected_square]))
    assert torch.allclose(result, torch.tensor([2 + 2 * 4 * 0.5 / (expected_square + 1e-7) ** 0.5]))


def test_no_compensation_leaves_the_gradient() -> None:
    gradient = torch.tensor([2.0])
    assert Compensation(strength=0).apply(gradient, torch.ones(1), torch.zeros(1), None) is gradient


def test_a_gradient_of_fresh_weights_needs_no_compensation() -> None:
    recorder = Recorder(1, Phases(bound=4), Compensation(strength=5.0))
    recorder.server.push(Push(worker=0, gradient=torch.tensor([3.0]), rows=row()))
    assert recorder.server.weights.item() == -3.0


def test_the_bound_is_zero_in_the_first_and_the_last_rounds() -> None:
    phases = Phases(bound=8, warmup_rounds=2, finish_rounds=3, last_round=20)
    assert [phases.bound_at(r) for r in (0, 1.9, 2, 16.9, 17, 19)] == [0, 0, 8, 8, 0, 0]


def test_synchronous_updates_are_the_token_weighted_mean() -> None:
    recorder = Recorder(2, Phases(bound=0))
    other = threading.Thread(
        target=recorder.server.push, args=(Push(worker=1, gradient=torch.tensor([10.0]), rows=row(tokens=3.0)),)
    )
    other.start()
    recorder.server.push(Push(worker=0, gradient=torch.tensor([2.0]), rows=row(tokens=1.0)))
    other.join()
    assert recorder.updates == 1
    assert recorder.server.weights.item() == pytest.approx(-(2.0 * 1 + 10.0 * 3) / 4)


def drive(recorder: Recorder, seed: int, *, stop_at: int | None = None, dies: bool = False) -> None:
    """Run workers as threads until the server stops them; a seeded order of arrivals, one at a time."""
    server, turns = recorder.server, random.Random(seed)
    speeds = [turns.choice((1, 1, 5, 25)) for _ in range(server.num_workers)]

    def work(worker: int) -> None:
        reply: Reply = server.first(worker)
        own = random.Random(seed * 100 + worker)
        pushed = 0
        while not reply.stop:
            threading.Event().wait(own.random() * speeds[worker] * 1e-5)
            if dies and worker == 1 and pushed == 3:
                server.leave(worker)
                return
            stop = stop_at is not None and worker == 0 and pushed == stop_at
            reply = server.push(Push(worker=worker, gradient=torch.tensor([1e-3]), rows=row(stop=stop)))
            pushed += 1

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(server.num_workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=300)
        assert not thread.is_alive(), "a worker was never answered"


@given(st.integers(1, 5), st.integers(0, 6), st.integers(0, 1000))
@settings(deadline=None, derandomize=True, max_examples=40)
def test_no_gradient_is_ever_older_than_the_bound(num_workers: int, bound: int, seed: int) -> None:
    rounds = 12
    recorder = Recorder(num_workers, Phases(bound=bound, warmup_rounds=2, finish_rounds=2, last_round=rounds))
    drive(recorder, seed)
    assert max(push.staleness for push in recorder.pushes) <= bound
    assert min(push.staleness for push in recorder.pushes) >= 0
    assert len(recorder.pushes) == rounds * num_workers  # as many gradients as asked for, whoever made them
    assert all(push.staleness == 0 for push in recorder.pushes[: 2 * num_workers])  # warm-up
    if bound == 0:
        assert recorder.updates == rounds


def test_without_a_tight_bound_every_gradient_is_an_update_of_its_own() -> None:
    recorder = Recorder(3, Phases(bound=1000, last_round=10))
    drive(recorder, 1)
    assert recorder.updates == 30


def test_the_others_finish_when_a_worker_is_gone() -> None:
    recorder = Recorder(3, Phases(bound=2, last_round=20, finish_rounds=2))
    drive(recorder, 4, dies=True)
    assert sum(push.worker == 1 for push in recorder.pushes) == 3
    assert len(recorder.pushes) == 3 * 20  # the gradient that it had begun is made by another


def test_a_newcomer_takes_the_place_of_a_lost_worker() -> None:
    recorder = Recorder(2, Phases(bound=0, last_round=6))
    server = recorder.server

    def push(worker: int, generation: int = 0) -> Reply:
        return server.push(Push(worker=worker, gradient=torch.tensor([1.0]), rows=row(), generation=generation))

    assert server.free_place() is None
    server.first(0), server.first(1)
    assert server.leave(1)
    assert not server.leave(1)  # told twice
    assert server.free_place() == 1
    assert not push(0).stop  # nobody else is there: the bound 0 does not hold it
    reply, generation = server.join(1)
    assert reply.weights.item() == -1.0
    assert server.free_place() is None
    assert push(1).stop  # what the lost worker still sends is turned away
    other = threading.Thread(target=push, args=(0,))
    other.start()
    push(1, generation)
    other.join()
    assert recorder.updates == 2
    assert [pushed.worker for pushed in recorder.pushes[1:]] in ([0, 1], [1, 0])


def test_who_comes_back_before_its_loss_was_noticed_does_not_count_twice() -> None:
    recorder = Recorder(1, Phases(bound=4, last_round=3))
    server = recorder.server
    server.first(0)
    _, generation = server.join(0)
    assert server.push(Push(worker=0, gradient=torch.ones(1), rows=row())).stop
    assert not server.leave(0)
    for _ in range(3):
        server.push(Push(worker=0, gradient=torch.ones(1), rows=row(), generation=generation))
    assert recorder.server.applied == 3  # as many as were asked for


def test_an_update_of_stale_gradients_takes_a_smaller_step() -> None:
    recorder = Recorder(2, Phases(bound=8))
    recorder.server.staleness_aware = True
    for _ in range(4):
        recorder.server.push(Push(worker=0, gradient=torch.ones(1), rows=row()))
    assert recorder.server.weights.item() == -4.0  # its own gradients are fresh
    recorder.server.push(Push(worker=1, gradient=torch.ones(1), rows=row()))
    assert recorder.server.weights.item() == -4.25  # four updates old


def test_a_worker_that_was_asked_to_stop_stops_all() -> None:
    recorder = Recorder(3, Phases(bound=2))  # no last round
    drive(recorder, 2, stop_at=5)
    assert recorder.server.stopping


def test_a_restored_server_hands_out_what_is_left() -> None:
    recorder = Recorder.__new__(Recorder)
    recorder.pushes, recorder.updates = [], 0
    recorder.server = ParameterServer(
        weights=torch.zeros(1),
        num_workers=2,
        phases=Phases(bound=3, last_round=10),
        compensation=Compensation(strength=0.0),
        step=recorder._step,
        on_applied=recorder._note,
    )
    recorder.server.restore(applied=13, version=9, mean_square=None)
    recorder.server.start()
    drive(recorder, 3)
    assert len(recorder.pushes) == 20 - 13
    assert recorder.server.applied == 20


def steps_of(count: int) -> torch.Tensor:
    return row().repeat(count, 1)


def test_local_steps_count_as_so_many_and_the_last_ones_are_shared_out() -> None:
    recorder = Recorder(2, Phases(bound=0, last_round=10), local_steps=4)
    server = recorder.server
    given: dict[int, list[int]] = {0: [], 1: []}

    def work(worker: int) -> None:
        reply = server.first(worker)
        while not reply.stop:
            given[worker].append(reply.steps)
            reply = server.push(Push(worker=worker, gradient=torch.ones(1), rows=steps_of(reply.steps)))

    threads = [threading.Thread(target=work, args=(worker,)) for worker in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert given == {0: [4, 4, 2], 1: [4, 4, 2]}
    assert (server.applied, recorder.updates) == (20, 3)


def test_steps_that_a_stopped_worker_did_not_do_are_not_counted() -> None:
    recorder = Recorder(1, Phases(bound=4, last_round=10), local_steps=4)
    server = recorder.server
    reply = server.first(0)
    assert (reply.steps, reply.round) == (4, 0.0)
    reply = server.push(Push(worker=0, gradient=torch.ones(1), rows=steps_of(1)))
    assert (server.applied, reply.round) == (1, 1.0)
    for expected in (4, 4, 1):
        assert reply.steps == expected
        reply = server.push(Push(worker=0, gradient=torch.ones(1), rows=steps_of(reply.steps)))
    assert reply.stop
    assert server.applied == 10


def test_steps_of_a_lost_worker_are_made_by_another() -> None:
    recorder = Recorder(2, Phases(bound=4, last_round=8), local_steps=4)
    server = recorder.server
    server.leave(1)
    reply, done = server.first(0), 0
    while not reply.stop:
        done += reply.steps
        reply = server.push(Push(worker=0, gradient=torch.ones(1), rows=steps_of(reply.steps)))
    assert done == server.applied == 16
