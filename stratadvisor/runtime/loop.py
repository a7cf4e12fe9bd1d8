"""The loop over optimizer steps: data, forward and backward, update, metrics, checkpoints, a clean end."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from . import data, loader
from .checkpoint import CheckpointError, Checkpoints, Position, loaded
from .clock import Mark
from .config import TrainConfig
from .distributed import Context
from .engine import Engine
from .optimizer import learning_rate
from .randomness import seed_step
from .telemetry import FIELDS, Meters, Telemetry, step_event


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line adds to the configuration."""

    steps: int | None
    """Last optimizer step, counted from the start of the training; None: the configuration's total, else no end."""
    data: Path | None
    resume: bool
    run_directory: Path
    tune_loader: bool = False
    """Take the loader workers that the first steps show to be needed, instead of only advising them."""

    def horizon(self, config: TrainConfig) -> int:
        """Return the length that fractions of the run refer to: the planned one, except in a validation run."""
        if self.steps is not None and (os.environ.get("STRATADVISOR_STEPS") or not config.total_steps):
            return self.steps
        return config.total_steps

    @property
    def warmup_limit(self) -> float:
        """Most warm-up steps: a short validation run (STRATADVISOR_STEPS) shortens it so that the loss can move."""
        if os.environ.get("STRATADVISOR_STEPS") and self.steps is not None:
            return self.steps / 5
        return math.inf


STOP_NAME = "stop"
"""A file of this name in the run directory asks for the end too: a way that no launcher takes for a failure."""
STOP_CHECK_SECONDS = 0.5
STOP_ASK_SECONDS, STOP_ASK_SHARE = 1.0, 0.02
"""Least time between two questions whether another rank was asked to stop, and their largest share of the time."""
END_NAME = "ended.json"
"""Written when all went as it should; a launcher calls every end by a signal a failure."""


class StopFlag:
    """Set by SIGTERM, SIGINT or a file; the loop then writes a checkpoint and ends."""

    def __init__(self, file: Path | None = None) -> None:
        self._file, self._raised, self._checked = file, False, -math.inf

    @property
    def raised(self) -> bool:
        """Whether somebody asked for the end."""
        if not self._raised and self._file is not None and time.perf_counter() - self._checked > STOP_CHECK_SECONDS:
            self._checked = time.perf_counter()
            self._raised = self._file.exists()
        return self._raised

    def _raise(self, *_: object) -> None:
        self._raised = True

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take the signals for the time of the block; in a thread, which cannot, its host process has them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._raise) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@dataclass(frozen=True)
class Done:
    """A step that this rank has done."""

    number: int
    """From 1."""
    loss_sum: torch.Tensor
    """Over this rank's own tokens; the device may still be computing it."""
    tokens: int

    @property
    def loss(self) -> float:
        """Mean loss of this rank's own tokens; waits for the device."""
        return float(self.loss_sum) / max(1, self.tokens)


@dataclass
class _Record:
    """A step whose device work may still be running."""

    step: int
    loss: torch.Tensor
    tokens: int
    start: Mark
    end: Mark
    data_wait_seconds: float
    waits: list[tuple[Mark, Mark]] | None
    learning_rate: float


FIRST_REPORTS = 4
"""Steps that are reported one by one: the first ones say little of those that follow."""
LOADER_FIELDS = ("step_seconds", "data_wait_seconds")
MAX_REPORTED_TOGETHER = 256


def reported_together(step_seconds: torch.Tensor, report_seconds: float) -> int:
    """Return how many steps make about that time, from theirs (ranks x steps), known to all ranks alike."""
    typical = float(step_seconds.max(dim=0).values.mean())
    return max(1, min(MAX_REPORTED_TOGETHER, int(report_seconds / max(typical, 1e-6))))


class Loop:
    """One run of an engine whose ranks step together, or each on its own between exchanges."""

    reason = "interrupted"

    def __init__(
        self, config: TrainConfig, context: Context, engine: Engine, dataset: Any, options: Options, stop: StopFlag
    ) -> None:
        self.config, self.context, self.engine, self.options, self.stop = config, context, engine, options, stop
        self.checkpoints = Checkpoints(options.run_directory, config, context)
        self.position = Position()
        found = self.checkpoints.latest() if options.resume else None
        if found is not None:
            loaded(engine.load, found[0])
            self.position = found[1]
        elif not options.resume:
            self.checkpoints.begin_anew()
        self.last_step = options.steps if options.steps is not None else (config.total_steps or None)
        self.warmup_steps = min(float(config.warmup_steps), options.warmup_limit)
        engine.horizon = options.horizon(config)
        self.counted = not getattr(dataset, "fixed_tokens", False)
        self.dataset, self.planned_batch = engine.part(dataset), context.global_batch_size
        self._open_data()
        self.telemetry = Telemetry(options.run_directory, context.rank, append=found is not None)
        self.meters = Meters(context.device, counts_host=context.rank == context.node_ranks[0])
        self.records: list[_Record] = []
        self.report_every = 1
        """Records that are shared at once; the same on all ranks."""
        self.loader_considered = False
        self.tokens_since_exchange = 0
        self.steps_since_checkpoint = self.steps_since_try = 0
        self._ask_again = 0.0

    def steps(self) -> Iterator[Done]:
        """Train to the last step or until asked to stop, yielding after every step; ``reason`` says why it ended."""
        self.telemetry.start(
            strategy=self.config.strategy,
            world_size=self.context.world_size,
            backend=self.config.backend if self.context.control is not None else "none",
            device=self.context.device,
            num_parameters=self.engine.num_parameters,
            meters=self.meters,
        )
        self.engine.begin(self)
        self.mark = self.engine.clock.mark()
        stopped = False
        while not stopped and not self._finished():
            done = self._step()
            stopped = self._exchange_and_report() if self.engine.exchange_interval else self._report(keep=1)
            every = self.config.checkpoint_interval_steps
            due = every and self.steps_since_try >= every and not self.tokens_since_exchange
            if due and not stopped and not self._finished():
                self._report(keep=0)
                self._checkpoint_or_go_on()
            yield done
        if not self.engine.exchange_interval:
            self._report(keep=0)
        if self.steps_since_checkpoint:
            self._checkpoint()
        self.reason = "interrupted" if stopped and not self._finished() else "completed"
        self.telemetry.end(self.reason)

    def go_to(self, position: Position) -> None:
        """Go on elsewhere in the run; before a step only."""
        self.position = position
        self._open_data()

    def _open_data(self) -> None:
        """Begin to read at the sample where the run stands."""
        context = self.context
        self.batches = data.batches(
            self.dataset,
            self.config,
            context.shares,
            context.rank // context.ranks_per_sample,
            num_micro_batches=context.micro_batches,
            start_sample=self.position.samples,
        )

    def _progress(self) -> float:
        """Return the steps done, in steps of the plan's batch where the engine counts so."""
        return self.position.samples / self.planned_batch if self.engine.counts_samples else self.position.step

    def _finished(self) -> bool:
        return self.last_step is not None and self._progress() >= self.last_step

    def _step(self) -> Done:
        """Run one optimizer step."""
        engine, device = self.engine, self.context.device
        engine.step = self.position.step
        seed_step(self.config.seed, self.context.rank // self.context.ranks_per_sample, engine.step)
        waiting = time.perf_counter()
        micro_batches = [next(self.batches) for _ in range(self.context.micro_batches)]
        data_wait_seconds = time.perf_counter() - waiting
        tokens = sum(int((labels != data.IGNORED).sum()) for _, labels in micro_batches)
        if self.counted:
            engine.expect(self._replica_tokens(tokens))
        loss = torch.zeros((), device=device)
        for index, (inputs, labels) in enumerate(micro_batches):
            inputs, labels = inputs.to(device, non_blocking=True), labels.to(device, non_blocking=True)  # noqa: PLW2901
            loss = loss + engine.forward_backward(inputs, labels, last=index == len(micro_batches) - 1)
        rate = learning_rate(self.config, self._progress(), self.warmup_steps) * engine.rate_factor
        engine.update(rate, tokens)
        self.position = Position(self.position.step + 1, self.position.samples + self.context.global_batch_size)
        self.tokens_since_exchange += tokens
        self.steps_since_checkpoint += 1
        self.steps_since_try += 1
        if not engine.exchange_interval:
            self.tokens_since_exchange = 0
        self._record(loss, tokens, data_wait_seconds, rate)
        return Done(self.position.step, loss, tokens)

    def _replica_tokens(self, tokens: int) -> int:
        """Return the tokens of all replica ranks in this step, where sequences differ in what counts."""
        ranks = self.engine.replica_ranks()
        if len(ranks) == 1:
            return max(1, tokens)
        total = torch.tensor([tokens], dtype=torch.int64)
        dist.all_reduce(total, group=self.engine.control_group())
        return max(1, int(total))

    def _record(self, loss: torch.Tensor, tokens: int, data_wait_seconds: float, rate: float) -> None:
        start, self.mark = self.mark, self.engine.clock.mark()
        waits = self.engine.take_communication()
        self.records.append(_Record(self.position.step, loss, tokens, start, self.mark, data_wait_seconds, waits, rate))

    def _row(self, record: _Record) -> torch.Tensor:
        """Return what this rank has to say about a step; waits until the device has finished it."""
        clock = self.engine.clock
        waits = math.nan if record.waits is None else sum(clock.seconds(a, b) for a, b in record.waits)
        seconds = clock.seconds(record.start, record.end)
        # ranks that took the same samples each count for a part of them
        loss, tokens = (float(value) / self.context.ranks_per_sample for value in (record.loss, record.tokens))
        values = (loss, tokens, seconds, record.data_wait_seconds, waits)
        return torch.tensor([*values, *self.meters.read(), float(self.stop.raised)], dtype=torch.float64)

    def _report(self, *, keep: int) -> bool:
        """Share all but the newest ``keep`` records; return whether any rank was asked to stop.

        Ranks step together here, so all of them share the same records, several at once where steps are short. The
        newest stays back because reading it would make the host wait for the device.
        """
        ready = len(self.records) - keep
        if ready < (self.report_every if keep else 1):
            return False
        records, self.records = self.records[:ready], self.records[ready:]
        tables = self.context.gather(torch.stack([self._row(record) for record in records]))
        for index, record in enumerate(records):
            event = step_event(record.step, tables[:, index], record.learning_rate, self.context.global_batch_size)
            self.telemetry.step(event)
        if records[-1].step > FIRST_REPORTS:
            seconds = tables[:, :, FIELDS.index("step_seconds")]
            self.report_every = reported_together(seconds, self.engine.report_seconds)
        stopped = bool(tables[:, :, -1].any())
        if keep and not stopped:
            self._consider_loader(tables)
            self.engine.after_report(self, tables)
        return stopped

    def _stop_announced(self) -> bool:
        """Return whether any rank was asked to stop, as it was known at most about a second ago.

        Asking is a round trip to the store's host: between distant nodes as long as a step, which replicas that meet
        rarely are there to avoid.
        """
        begin = time.monotonic()
        if begin < self._ask_again:
            return False
        announced = self.context.stop_announced()
        seconds = time.monotonic() - begin
        self._ask_again = begin + max(STOP_ASK_SECONDS, seconds / STOP_ASK_SHARE)
        return announced

    def _exchange_and_report(self) -> bool:
        """Let replicas meet when their interval is over, the run ends, or any rank was asked to stop.

        A rank that stops enters the next exchange early; whichever exchange the others are heading for is the same
        one, and the rows shared right after it tell all of them to end.
        """
        if self.stop.raised:
            self.context.announce_stop()
        due = len(self.records) >= self.engine.exchange_interval or self._finished()
        if not due and not (self.engine.meets_early and self._stop_announced()):
            newest = self.records[-1]
            self.telemetry.alive(newest.step, lambda: float(newest.loss) / max(1, newest.tokens))
            return False
        self.engine.exchange(self.tokens_since_exchange)
        self.tokens_since_exchange = 0
        end = self.engine.clock.mark()
        self.records[-1].end, self.mark = end, end
        self.records[-1].waits = [*(self.records[-1].waits or []), *(self.engine.take_communication() or [])]
        table = torch.full((self.engine.exchange_interval, len(FIELDS)), math.nan, dtype=torch.float64)
        for index, record in enumerate(self.records):
            table[index] = self._row(record)
        tables = self.context.gather(table)
        stopped = bool((tables[:, :, -1] == 1).any())
        first = self.position.step - len(self.records) + 1
        for index in range(self.engine.exchange_interval):
            present = ~torch.isnan(tables[:, index, 1])
            if present.any():
                rate = self.records[min(index, len(self.records) - 1)].learning_rate
                samples = sum(b for b, here in zip(self.context.batch_of_rank, present.tolist(), strict=True) if here)
                self.telemetry.step(step_event(first + index, tables[present, index], rate, samples))
        done = int((~torch.isnan(tables[:, :, 1])).sum(dim=1).max())
        ahead = done - len(self.records)
        # Stopped early, ranks may differ by some steps; they go on from the furthest, so nobody sees a sample twice.
        self.position = Position(
            self.position.step + ahead, self.position.samples + ahead * self.context.global_batch_size
        )
        self.records.clear()
        if not stopped:
            self._consider_loader(tables)
            self.engine.after_report(self, tables)
        return stopped

    def _consider_loader(self, tables: torch.Tensor) -> None:
        """After the first steps, measure loading and say what it needs, each rank for itself; take it if asked to."""
        if self.loader_considered or self.position.step < FIRST_REPORTS:
            return
        self.loader_considered = True
        own = tables[self.context.rank][:, [FIELDS.index(name) for name in LOADER_FIELDS]].nan_to_num(0.0)
        seconds = own[:, 0] - own[:, 1]
        samples = self.context.batch_of_rank[self.context.rank]
        before = self.config.data_loader_workers
        advice = loader.advise(
            loader.measure(self.dataset, len(self.dataset), self.position.step),
            loader.room(len(self.context.node_ranks)),
            samples_per_step=samples,
            micro_batch=math.ceil(samples / self.context.micro_batches),
            compute_seconds=float(seconds[seconds > 0].median()) if bool((seconds > 0).any()) else 0.0,
            now=before,
        )
        self.telemetry.loader(self.position.step, advice.reason, advice.workers)
        if self.options.tune_loader and advice.workers != before:
            self.config = replace(self.config, data_loader_workers=advice.workers)
            self._open_data()
        self.mark = self.engine.clock.mark()

    def flush(self) -> None:
        """Report what is still kept back; called on all ranks at the same step."""
        if not self.engine.exchange_interval:
            self._report(keep=0)

    def rearrange(self, batch_of_rank: tuple[int, ...], loader_workers: int) -> None:
        """Go on with other shares of the ranks, from the sample where the run stands; on all ranks at the same step."""
        rank = self.context.rank
        group = self.config.groups[self.context.group_of_rank[rank]]
        self.config = replace(self.config, data_loader_workers=loader_workers)
        self.context = replace(
            self.context,
            batch_of_rank=batch_of_rank,
            micro_batches=math.ceil(batch_of_rank[rank] / group.micro_batch_size),
        )
        self.engine.context = self.context
        self.report_every = 1
        self._open_data()
        self.mark = self.engine.clock.mark()

    def _checkpoint_or_go_on(self) -> None:
        """Write a checkpoint; where that fails (a full disk), say so and train on to the next one."""
        try:
            self._checkpoint()
        except CheckpointError as problem:
            self.steps_since_try = 0
            if self.context.rank == 0:
                every = self.config.checkpoint_interval_steps
                print(f"warning: {problem}; earlier ones are kept, the next try is in {every} steps", flush=True)

    def _checkpoint(self) -> None:
        path = self.checkpoints.save(self.position, self.engine.save)
        self.steps_since_checkpoint = self.steps_since_try = 0
        self.mark = self.engine.clock.mark()  # writing it is no part of the next step
        if self.context.rank == 0:
            print(f"checkpoint {path}", flush=True)


Builder = Callable[..., Any]


@contextmanager
def opened(
    config: TrainConfig, context: Context, options: Options, model: nn.Module, dataset: Any
) -> Iterator[tuple[Any, Iterator[Done]]]:
    """Set up the engine; give the run (which has ``reason`` at its end) and the iterator that trains."""
    from .engine import create

    if context.rank == 0 and context.world_size != config.world_size:
        print(
            f"note: the plan is for {config.world_size} devices, {context.world_size} processes were started:"
            f" a step has {context.global_batch_size} sequences",
            flush=True,
        )
    stop_file = options.run_directory / STOP_NAME
    if context.rank == context.node_ranks[0]:
        for old in (stop_file, options.run_directory / END_NAME):  # of an earlier run
            old.unlink(missing_ok=True)
    stop = StopFlag(stop_file)
    with stop.listening():
        engine = create(config, context, model)
        steps = getattr(engine, "steps", None)
        if steps is not None:  # workers of a parameter server do not step together
            yield engine, steps(dataset, options, stop)
            return
        loop = Loop(config, context, engine, dataset, options, stop)
        yield loop, loop.steps()


def train(config: TrainConfig, context: Context, options: Options, build_model: Builder, build_data: Builder) -> str:
    """Build everything, run, and return the reason of the end."""
    torch.manual_seed(config.seed)
    model: nn.Module = build_model(config)
    dataset = build_data(config, options.data)
    with opened(config, context, options, model, dataset) as (run, steps):
        for _ in steps:
            pass
        return str(run.reason)
