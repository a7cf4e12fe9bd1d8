"""Asynchronous SGD, the workers: a server in threads of rank 0, every rank a worker that may be lost and replaced.

With ``sync_interval_steps`` above 1 a worker takes so many steps with its own optimizer and pushes how far it came;
the server then is the outer optimizer (delayed Nesterov, arXiv:2401.09135).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from . import data
from .compression import CAST_TYPES
from .config import ConfigError, LostError, TrainConfig, TrainingError
from .distributed import Context
from .engine import Engine
from .local import flatten, write_back
from .loop import Done, Options, StopFlag
from .optimizer import learning_rate, local_gradients
from .own_state import OwnState
from .parameter_server import Answer, Push, Reply
from .randomness import seed_step
from .telemetry import Meters
from .transport import Link, LinkError, connect

RECONNECT_SECONDS = 60.0
"""How long a worker looks for its server after a cut (settings.reconnect_seconds)."""
MOST_LOCAL_STEPS = 2000
"""What is told of them must fit the header of a push; published runs have up to 500 (arXiv:2311.08105)."""


class AsyncEngine(Engine):
    """A worker, and on rank 0 the server beside it."""

    reason = "interrupted"

    def __init__(self, config: TrainConfig, context: Context, model: nn.Module) -> None:
        self.interval = config.sync_interval_steps
        if self.interval > MOST_LOCAL_STEPS:
            raise ConfigError(
                f"sync_interval_steps of async_sgd must be at most {MOST_LOCAL_STEPS}, not {self.interval}"
            )
        if self.interval == 1 and config.optimizer not in ("adamw", "sgd", "adafactor"):
            raise ConfigError(f"the optimizer {config.optimizer} is not supported with async_sgd: use adamw or sgd")
        if config.compression not in CAST_TYPES:
            raise ConfigError(f"compression {config.compression} is not for async_sgd, which takes none, bf16 or fp16")
        super().__init__(config, context, model)
        self.num_weights = sum(p.numel() for p in self.parameters)
        self.meters = Meters(context.device, counts_host=context.rank == context.node_ranks[0])
        self.push_type = CAST_TYPES[config.compression] or torch.float32

    def replica_ranks(self) -> list[int]:
        """Return this rank alone."""
        return [self.context.rank]

    def make_optimizer(self) -> Any:
        """Return nothing, since the server has the optimizer; with local steps every worker has its own."""
        return super().make_optimizer() if self.interval > 1 else None

    def steps(self, dataset: Any, options: Options, stop: StopFlag) -> Iterator[Done]:
        """Train, yielding after every gradient of this worker; ``reason`` says why it ended."""
        self.warmup_steps = min(float(self.config.warmup_steps), options.warmup_limit)
        self.own = OwnState(options.run_directory / "checkpoints", self.context.rank)
        if self.context.rank > 0:
            remote = Remote(self.config, self.context, self.num_weights, self.push_type)
            yield from self._work(remote, dataset, stop)
            self.reason = "completed"
            return
        from .async_server import Server

        server = Server(self, options)
        server.serve()
        yield from self._work(server, dataset, stop)
        self.reason = server.close()

    def _work(self, place: Any, dataset: Any, stop: StopFlag) -> Iterator[Done]:
        """Compute gradients until told to stop; ``place``: the server itself, or the connection to it."""
        counted = not getattr(dataset, "fixed_tokens", False)
        waiting = time.perf_counter()
        answer = place.first()
        steps, batches, begun = -1, None, False
        while not answer.reply.stop:
            if batches is None or answer.steps != steps:  # the place was taken again: go on where the server stands
                steps = answer.steps
                batches = data.batches(
                    dataset,
                    self.config,
                    list(self.context.batch_of_rank),
                    self.context.rank,
                    num_micro_batches=self.context.micro_batches,
                    start_sample=steps * self.context.global_batch_size,
                )
                if not begun and self.interval > 1:
                    self.own.take_back(steps, self.load_state)
                begun = True
            write_back(answer.reply.weights, self.parameters)
            waited = time.perf_counter() - waiting
            if self.interval > 1:
                start = flatten(self.parameters).cpu()
                rows: list[torch.Tensor] = []
                for row in self._local_steps(answer.reply, batches, steps, waited, stop, counted=counted):
                    if rows:
                        yield _done(steps, rows[-1])
                    rows.append(row)
                    steps += 1
                change = start.sub_(flatten(self.parameters).cpu())
                push = Push(worker=self.context.rank, gradient=change, rows=torch.stack(rows))
                if answer.save or stop.raised:
                    self.own.keep(steps, self.state())
            else:
                seed_step(self.config.seed, self.context.rank, steps)
                push = self._gradient(batches, waited, stop, counted=counted)
                steps += 1
            waiting = time.perf_counter()
            done = _done(steps, push.rows[-1])
            answer = place.push(push)
            yield done
        if self.interval > 1 and begun:
            self.own.keep(steps, self.state())

    def _local_steps(
        self, reply: Reply, batches: Any, steps: int, waited_seconds: float, stop: StopFlag, *, counted: bool
    ) -> Iterator[torch.Tensor]:
        """Train on this worker's own weights for as long as the server said, yielding a row of each step."""
        for index in range(reply.steps):
            start = time.perf_counter()
            seed_step(self.config.seed, self.context.rank, steps + index)
            micro_batches = [next(batches) for _ in range(self.context.micro_batches)]
            data_seconds = time.perf_counter() - start
            tokens = max(1, sum(int((labels != data.IGNORED).sum()) for _, labels in micro_batches))
            if counted:
                self.expect(tokens)
            loss = self._summed_loss(micro_batches)
            self.update(learning_rate(self.config, reply.round + index, self.warmup_steps), tokens)
            values = (float(loss), tokens, time.perf_counter() - start + waited_seconds, data_seconds, waited_seconds)
            waited_seconds = 0.0
            stopping = stop.raised
            yield torch.tensor([*values, *self.meters.read(), float(stopping)], dtype=torch.float64)
            if stopping:
                return

    def _summed_loss(self, micro_batches: list[Any]) -> torch.Tensor:
        """Add up the gradients of a step's micro-batches; return the sum of their losses."""
        loss = torch.zeros((), device=self.device)
        for index, (inputs, labels) in enumerate(micro_batches):
            moved = inputs.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)
            loss = loss + self.forward_backward(*moved, last=index == len(micro_batches) - 1)
        return loss

    def _gradient(self, batches: Any, waited_seconds: float, stop: StopFlag, *, counted: bool) -> Push:
        """Compute one gradient; ``waited_seconds``: for the server, since the last one."""
        start = time.perf_counter()
        micro_batches = [next(batches) for _ in range(self.context.micro_batches)]
        data_seconds = time.perf_counter() - start
        tokens = max(1, sum(int((labels != data.IGNORED).sum()) for _, labels in micro_batches))
        if counted:
            self.expect(tokens)
        while True:
            loss = self._summed_loss(micro_batches)
            gradient = flatten(local_gradients(self.parameters)).cpu() / self.scaler.scale
            for parameter in self.parameters:
                parameter.grad = None
            finite = not self.scaler.enabled or bool(torch.isfinite(gradient).all())
            self.scaler.update(finite=finite)
            if finite:
                break  # else the same batch again with a smaller scale
        seconds = time.perf_counter() - start + waited_seconds
        values = (float(loss), tokens, seconds, data_seconds, waited_seconds, *self.meters.read())
        row = torch.tensor([*values, float(stop.raised)], dtype=torch.float64)
        return Push(worker=self.context.rank, gradient=gradient, rows=row[None])


def _done(steps: int, row: torch.Tensor) -> Done:
    """Return what the caller of ``steps`` is told of a step."""
    return Done(steps, row[0], int(row[1]))


class Remote:
    """A worker's connection to the server: found again after a cut, given up when the server has ended."""

    def __init__(self, config: TrainConfig, context: Context, num_weights: int, push_type: torch.dtype) -> None:
        self._worker, self._num_weights, self._push_type = context.rank, num_weights, push_type
        self._seconds = float(config.settings.get("reconnect_seconds", RECONNECT_SECONDS))
        self._address, self._link = context.server, context.link

    def first(self) -> Answer:
        """Return the first weights and how many steps this place has done."""
        try:
            return self._begin()
        except LinkError as problem:
            return self._again(problem)

    def push(self, push: Push) -> Answer:
        """Send a gradient; return what to do next. A gradient under way when the connection is lost is made again."""
        try:
            assert self._link is not None
            self._link.send({"rows": push.rows.tolist()}, push.gradient.to(self._push_type).contiguous())
            return self._receive()
        except LinkError as problem:
            return self._again(problem)

    def _begin(self) -> Answer:
        if self._link is None:
            self._link, _ = take_place(self._address, self._worker)
        self._link.send({"ready": True})
        return self._receive()

    def _receive(self) -> Answer:
        assert self._link is not None
        header = self._link.receive()
        if header.get("stop", True):
            return Answer(Reply(weights=torch.empty(0), stop=True), 0)
        weights = torch.empty(self._num_weights)
        if header["num_weights"] != self._num_weights:
            raise TrainingError(
                f"the server's model has {header['num_weights']} trainable parameters,"
                f" this worker's {self._num_weights}"
            )
        self._link.receive_into(weights)
        reply = Reply(weights=weights, stop=False, steps=int(header["local_steps"]), round=float(header["round"]))
        return Answer(reply, int(header["steps"]), bool(header["save"]))

    def _again(self, problem: LinkError) -> Answer:
        """Connect again and go on.

        Raises:
            TrainingError: the server has ended or cannot be reached for too long.

        """
        print(f"worker {self._worker}: {problem}; connecting again", flush=True)
        deadline = time.monotonic() + self._seconds
        while True:
            if self._link is not None:
                self._link.close()
                self._link = None
            try:
                return self._begin()
            except LinkError as again:
                refused = "refused" in str(again).lower()
                if refused or time.monotonic() > deadline:
                    raise LostError(f"the server is gone ({again}); before that: {problem}") from None
            time.sleep(min(1.0, self._seconds / 10))


def take_place(address: Any, worker: int | None) -> tuple[Link, dict[str, Any]]:
    """Connect to the server and take a worker's place, None: any free one; return the link and what the server says.

    Raises:
        LinkError: it cannot be reached.
        TrainingError: no place is free.

    """
    link = connect(address, {"worker": worker}, 10.0)
    welcome = link.receive()
    if "refused" in welcome:
        raise TrainingError(f"the server takes no worker: {welcome['refused']}")
    return link, welcome


def join(config: TrainConfig, context: Context) -> Context:
    """Return the context of a worker that comes while others are at work: the server says which place it takes.

    Raises:
        TrainingError: the server cannot be reached or has no free place.

    """
    try:
        link, welcome = take_place(context.server, None)
    except LinkError as problem:
        raise TrainingError(f"--join: {problem}") from None
    rank, groups = int(welcome["worker"]), tuple(welcome["groups"])
    print(f"worker {rank} of {len(groups)} joins", flush=True)
    return replace(
        context,
        rank=rank,
        world_size=len(groups),
        node_of_rank=tuple(range(len(groups))),
        group_of_rank=groups,
        batch_of_rank=tuple(welcome["shares"]),
        micro_batches=config.groups[groups[rank]].gradient_accumulation_steps,
        link=link,
    )
