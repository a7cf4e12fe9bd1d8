"""The parameter server of asynchronous SGD: connections, optimizer, metrics and checkpoints, in threads of rank 0.

Without local steps the optimizer of the plan works here; with them the workers have it, and here is the outer one.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .checkpoint import CheckpointError, Checkpoints, Position, loaded
from .config import TrainingError
from .delayed_nesterov import DelayedNesterov
from .integrity import write_tensors
from .local import flatten
from .loop import Options
from .optimizer import ADAM_BETAS, build, learning_rate, set_learning_rate
from .parameter_server import Answer, Compensation, ParameterServer, Phases, Push, Reply
from .telemetry import FIELDS, Telemetry, step_event
from .transport import Link, LinkError, Listener

if TYPE_CHECKING:
    from .async_sgd import AsyncEngine

DELAYS_NAME = "delays.jsonl"
"""One line per gradient: worker, its staleness in updates, the bound in force, its own compute time."""
ADDRESS_NAME = "server.json"
"""Where the server of a run under way listens: what ``--join`` takes."""
OUTER_LEARNING_RATE, OUTER_MOMENTUM = 0.7, 0.9
"""Of the outer steps, as in DiLoCo (arXiv:2311.08105)."""
PUSHES_REMEMBERED = 5
"""A worker's speed is the median over so many pushes."""
DEVICE_JOULES = FIELDS.index("device_joules")
JOIN_SECONDS = 120.0
"""How long a worker of the start may take to connect before the others go on without it."""


def momentum_beside_asynchrony(num_workers: int) -> float:
    """Return Adam's beta1 for n workers: asynchrony acts like a momentum of about 1 - 1/n (arXiv:1605.09774).

    What is left to the usual 0.9 is explicit; the subtraction is our choice.
    """
    return max(0.0, ADAM_BETAS[0] - (1 - 1 / num_workers))


def steps_by_speed(interval: int, own_seconds: float, fastest_seconds: float) -> int:
    """Return how many local steps a worker does so that all push about equally often, from the seconds of a step.

    H_i = floor(H v_i / v_max), at least 1: dynamic local updates of arXiv:2401.09135.
    """
    return max(1, int(interval * min(1.0, fastest_seconds / max(own_seconds, 1e-9))))


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
        stream.write(text + "\n")


class Server:
    """The parameter server of rank 0 with its threads, optimizer, metrics and checkpoints."""

    def __init__(self, engine: AsyncEngine, options: Options) -> None:
        self.engine, self.config = engine, engine.config
        context = engine.context
        self.num_workers = context.world_size
        self.warmup_steps = min(float(self.config.warmup_steps), options.warmup_limit)
        weights = flatten(engine.parameters).cpu()
        self._prepare_optimizer(weights, [p.shape for p in engine.parameters])
        self._speeds: list[deque[float]] = [deque(maxlen=PUSHES_REMEMBERED) for _ in range(self.num_workers)]
        alone = replace(context, control=None, node_of_rank=(0,))  # checkpoints are the server's alone
        self.checkpoints = Checkpoints(options.run_directory, self.config, alone)
        found = self.checkpoints.latest() if options.resume else None
        self.steps_taken = torch.zeros(self.num_workers)
        horizon = options.horizon(self.config)
        last = options.steps if options.steps is not None else (self.config.total_steps or float("inf"))
        settings = self.config.settings
        self.core = ParameterServer(
            weights=weights,
            num_workers=self.num_workers,
            phases=Phases(
                bound=int(settings.get("staleness_bound", self.config.max_staleness_steps)),
                warmup_rounds=float(settings.get("sync_warmup_fraction", 0.05)) * horizon,
                finish_rounds=float(settings.get("sync_finish_fraction", 0.05)) * horizon,
                last_round=last,
            ),
            compensation=Compensation(
                # the correction is of a gradient; a change of many steps has none
                strength=0.0 if engine.interval > 1 else float(settings.get("delay_compensation", 0.04)),
                adaptive=bool(settings.get("delay_compensation_adaptive", False)),
            ),
            staleness_aware=bool(settings.get("staleness_aware", False)),
            step=self._step if self.outer is None else self._outer_step,
            local_steps=self._local_steps,
            on_applied=self._note,
        )
        self._pending: list[tuple[int, torch.Tensor]] = []
        """Steps of workers that fill no step of the run yet."""
        if found is not None:
            loaded(self._load, found[0])
        elif not options.resume:
            self.checkpoints.begin_anew()
        self.telemetry = Telemetry(options.run_directory, 0, append=found is not None)
        delays = options.run_directory / DELAYS_NAME
        try:
            self._delays = delays.open("a" if found is not None else "w", encoding="utf-8")
        except OSError as problem:
            raise TrainingError(f"{delays} cannot be written: {problem.strerror}") from None
        self._own_seconds = [0.0] * self.num_workers
        self._joules = torch.full((self.num_workers, 2), math.nan, dtype=torch.float64)
        self._saved_round = self._reported = self.core.applied // self.num_workers
        self._threads: list[threading.Thread] = []
        self._listener = context.server if isinstance(context.server, Listener) else None
        self._address_path = options.run_directory / ADDRESS_NAME
        self._closed, self._places = threading.Event(), threading.Lock()

    def _prepare_optimizer(self, weights: torch.Tensor, shapes: list[torch.Size]) -> None:
        """Build the optimizer over views of the flat weights, on the host."""
        sizes = [shape.numel() for shape in shapes]
        self._views = [nn.Parameter(v.view(s)) for v, s in zip(torch.split(weights, sizes), shapes, strict=True)]
        self._sizes = sizes
        settings = self.config.settings
        self.outer: DelayedNesterov | None = None
        self.optimizer: Any
        if self.engine.interval > 1:
            self.optimizer = self.outer = DelayedNesterov(
                len(weights),
                float(settings.get("outer_learning_rate", OUTER_LEARNING_RATE)),
                float(settings.get("outer_momentum", OUTER_MOMENTUM)),
                int(settings.get("outer_momentum_every", self.num_workers)),
            )
            return
        betas = (momentum_beside_asynchrony(self.num_workers), ADAM_BETAS[1])
        self.optimizer = build(replace(self.config, device_kind="cpu"), nn.ParameterList(self._views), betas)

    def _outer_step(self, change: torch.Tensor, _: float, factor: float, pushes: int) -> None:
        """Apply the mean change of some workers' local steps to the weights."""
        assert self.outer is not None
        self.outer.step(self.core.weights, change, pushes, factor)

    def _local_steps(self, worker: int) -> int:
        """Return the steps until a worker's next push: the whole interval in lockstep and until its speed is known."""
        interval = self.engine.interval
        fixed = not bool(self.config.settings.get("dynamic_local_steps", True))
        if interval == 1 or fixed or not self._speeds[worker] or self.core.phases.bound_at(self.core.round) == 0:
            return interval
        fastest = min(median(pushes) for pushes in self._speeds if pushes)
        return steps_by_speed(interval, median(self._speeds[worker]), fastest)

    def _step(self, gradient: torch.Tensor, round_: float, factor: float, _: int) -> None:
        """Apply one gradient to the weights, with ``factor`` times the learning rate of the schedule."""
        if self.config.gradient_clip_norm > 0:
            gradient.mul_((self.config.gradient_clip_norm / (gradient.norm() + 1e-6)).clamp(max=1.0))
        for view, piece in zip(self._views, torch.split(gradient, self._sizes), strict=True):
            view.grad = piece.view_as(view)
        self._rate = learning_rate(self.config, round_, self.warmup_steps)
        set_learning_rate(self.optimizer, self._rate * factor)
        self.optimizer.step()

    def first(self) -> Answer:
        """Return the first weights of the worker beside the server."""
        return self._answer(0, self.core.first(0))

    def push(self, push: Push) -> Answer:
        """Take a gradient of the worker beside the server."""
        return self._answer(0, self.core.push(push))

    def _answer(self, worker: int, reply: Reply) -> Answer:
        return Answer(reply, int(self.steps_taken[worker]), self._save_is_near(reply))

    def _save_is_near(self, reply: Reply) -> bool:
        """Return whether a checkpoint is due once these steps are done by everybody."""
        every = self.config.checkpoint_interval_steps
        return bool(every) and self.core.applied / self.num_workers + reply.steps - self._saved_round >= every

    def serve(self) -> None:
        """Start: hand out the first weights, let workers in as they come, write down where to find the server."""
        context, config = self.engine.context, self.config
        self.telemetry.start(
            strategy=config.strategy,
            world_size=self.num_workers,
            backend="tcp",
            device=context.device,
            num_parameters=self.engine.num_parameters,
            meters=self.engine.meters,
        )
        self._round_start = time.perf_counter()
        self.core.start()
        self._awaited = set(range(1, self.num_workers))
        if self._listener is None:
            return
        write_private(self._address_path, self._listener.address.to_json())
        threading.Thread(target=self._let_in, args=(self._listener,), daemon=True).start()
        threading.Thread(target=self._give_up_on_absent, daemon=True).start()

    def _let_in(self, listener: Listener) -> None:
        """Take connections until the listener is closed, a thread for each."""
        while True:
            try:
                found = listener.accept()
            except OSError:
                return
            if found is not None:
                link, hello = found
                thread = threading.Thread(target=self._attend, args=(link, hello.get("worker")), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _give_up_on_absent(self) -> None:
        """Go on without workers that took part in the start and then never connected."""
        if not self._closed.wait(JOIN_SECONDS):
            for worker in sorted(self._awaited):
                print(f"worker {worker} did not connect within {JOIN_SECONDS:.0f} s: going on without it", flush=True)
                self._awaited.discard(worker)
                self.core.leave(worker)

    def _place(self, worker: object) -> int | None:
        """Return the place that a newcomer gets: its own, else a free one; None when there is none."""
        if isinstance(worker, int) and 0 < worker < self.num_workers:
            return worker
        with self._places:
            free = self.core.free_place()
            if free is not None:
                self.core.reserve(free)
            return free

    def _attend(self, link: Link, wanted: object) -> None:
        """Speak with one remote worker until it is told to stop, or is gone."""
        worker = self._place(wanted)
        context = self.engine.context
        generation, joined = 0, False
        try:
            if worker is None:
                link.send({"refused": f"all {self.num_workers} places are taken"})
                return
            link.send({"worker": worker, "shares": list(context.batch_of_rank), "groups": list(context.group_of_rank)})
            link.receive()  # ready
            if worker in self._awaited:
                self._awaited.discard(worker)
                reply = self.core.first(worker)
            else:
                self._speeds[worker].clear()
                reply, generation = self.core.join(worker)
                print(f"worker {worker} joins at update {self.core.version}", flush=True)
            joined = True
            while True:
                if reply.stop:
                    link.send({"stop": True})
                    return
                header = {
                    "stop": False,
                    "num_weights": len(reply.weights),
                    "steps": int(self.steps_taken[worker]),
                    "local_steps": reply.steps,
                    "round": reply.round,
                    "save": self._save_is_near(reply),
                }
                link.send(header, reply.weights)
                rows = torch.tensor(link.receive()["rows"], dtype=torch.float64).view(-1, len(FIELDS))
                gradient = torch.empty(len(self.core.weights), dtype=self.engine.push_type)
                link.receive_into(gradient)
                push = Push(worker=worker, gradient=gradient.float(), rows=rows, generation=generation)
                reply = self.core.push(push)
        except (LinkError, KeyError, TypeError, ValueError, RuntimeError) as problem:
            if worker is not None and (not joined or self.core.leave(worker, generation)):
                self._speeds[worker].clear()
                print(f"worker {worker} is gone: {problem}; the others go on", flush=True)
                if not joined:
                    self.core.give_back(worker)
        finally:
            link.close()

    def _note(self, pushes: list[Push], bound: int) -> None:
        """Log the delays of an update, and a step event for every full round; called by the server, locked."""
        for push in pushes:
            own = float((push.rows[:, 2] - push.rows[:, 3] - push.rows[:, 4]).mean())
            self._own_seconds[push.worker] = own
            self._speeds[push.worker].append(own + float(push.rows[:, 3].mean()))
            self._joules[push.worker] = push.rows[-1, DEVICE_JOULES : DEVICE_JOULES + 2]
            self.steps_taken[push.worker] += push.steps
            line = {
                "update": self.core.version,
                "worker": push.worker,
                "staleness": push.staleness,
                "bound": bound,
                "compute_seconds": own,
            }
            if self.outer is not None:
                line["steps"] = push.steps
            self._delays.write(json.dumps(line) + "\n")
        # step by step, so that a reported step has the steps that its workers did side by side
        for index in range(max(push.steps for push in pushes)):
            self._pending += [(push.worker, push.rows[index]) for push in pushes if index < push.steps]
        self._delays.flush()
        now, whole = time.perf_counter(), len(self._pending) // self.num_workers
        seconds = (now - self._round_start) / max(1, whole)
        self._round_start = now if whole else self._round_start
        for _ in range(whole):
            taken, self._pending = self._pending[: self.num_workers], self._pending[self.num_workers :]
            rows = torch.stack([row for _, row in taken])
            samples = sum(self.engine.context.batch_of_rank[worker] for worker, _ in taken)
            if self.outer is not None:
                self._rate = learning_rate(self.config, self._reported, self.warmup_steps)
            self._reported += 1
            event = step_event(self._reported, rows, self._rate, samples)
            event["step_seconds"] = seconds
            event["data_wait_seconds"], event["communication_seconds"] = (
                rows[:, 3].mean().item(),
                rows[:, 4].mean().item(),
            )
            event["rank_step_seconds"] = list(self._own_seconds)
            event["compute_seconds"] = max(self._own_seconds)
            event["straggler_spread_seconds"] = max(self._own_seconds) - min(self._own_seconds)
            # a fast worker has several rows in a round: energy counters are taken once from each worker
            event["device_energy_joules"], event["host_energy_joules"] = self._joules.sum(dim=0).tolist()
            self.telemetry.step(event)
        every = self.config.checkpoint_interval_steps
        if every and self._reported - self._saved_round >= every:
            try:
                self._save()
            except CheckpointError as problem:
                print(f"warning: {problem}; earlier ones are kept, the next try is in {every} steps", flush=True)

    def close(self) -> str:
        """Wait for the workers, write the last checkpoint, end the log; return the reason."""
        self._closed.set()
        if self._listener is not None:
            self._listener.close()
            self._address_path.unlink(missing_ok=True)
        for thread in list(self._threads):
            thread.join()
        self._save()
        self._delays.close()
        reason = "interrupted" if self.core.stopping and self.core.round < self.core.phases.last_round else "completed"
        self.telemetry.end(reason)
        return reason

    def _save(self) -> None:
        """Write weights, optimizer and how many gradients each worker has had applied."""
        self._saved_round = self._reported
        trainable = [name for name, p in self.engine.model.named_parameters() if p.requires_grad]
        model = self.engine.model.state_dict() | {
            name: view.detach().clone() for name, view in zip(trainable, self._views, strict=True)
        }
        state = {
            "model": model,
            "optimizer": self.optimizer.state_dict(),
            "mean_square": self.core.mean_square,
            "applied": self.core.applied,
            "version": self.core.version,
            "steps_taken": self.steps_taken,
            "pending_workers": torch.tensor([worker for worker, _ in self._pending], dtype=torch.long),
            "pending_rows": torch.stack([row for _, row in self._pending]) if self._pending else torch.empty(0),
        }
        batches = torch.tensor(self.engine.context.batch_of_rank)
        position = Position(self._reported, int((self.steps_taken * batches).sum()))
        path = self.checkpoints.save(position, lambda directory: write_tensors(directory / "state.pt", state))
        print(f"checkpoint {path}", flush=True)

    def _load(self, directory: Path) -> None:
        state = torch.load(directory / "state.pt", map_location="cpu", weights_only=True)
        trainable = [name for name, p in self.engine.model.named_parameters() if p.requires_grad]
        with torch.no_grad():
            for name, view in zip(trainable, self._views, strict=True):
                view.copy_(state["model"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.core.restore(state["applied"], state["version"], state["mean_square"])
        self.steps_taken = state["steps_taken"]
        self._pending = list(zip(state["pending_workers"].tolist(), state["pending_rows"], strict=True))
