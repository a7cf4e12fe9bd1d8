"""Asynchronous SGD: a parameter server in threads of rank 0, every rank a worker, plain send and receive over gloo."""

from __future__ import annotations

import json
import math
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from . import data
from .checkpoint import CheckpointError, Checkpoints, Position, loaded
from .compression import CAST_TYPES
from .config import ConfigError, TrainConfig, TrainingError
from .distributed import Context
from .engine import Engine
from .integrity import write_tensors
from .local import flatten, write_back
from .loop import Options, StopFlag
from .optimizer import ADAM_BETAS, build, learning_rate, local_gradients, set_learning_rate
from .parameter_server import Compensation, ParameterServer, Phases, Push, Reply
from .randomness import seed_step
from .telemetry import FIELDS, Meters, Telemetry, step_event

DELAYS_NAME = "delays.jsonl"
"""One line per gradient: worker, its staleness in updates, the bound in force, its own compute time."""
DEVICE_JOULES = FIELDS.index("device_joules")


def momentum_beside_asynchrony(num_workers: int) -> float:
    """Return Adam's beta1 for n workers: asynchrony acts like a momentum of about 1 - 1/n (arXiv:1605.09774).

    What is left to the usual 0.9 is explicit; the subtraction is our choice.
    """
    return max(0.0, ADAM_BETAS[0] - (1 - 1 / num_workers))


class AsyncEngine(Engine):
    """A worker, and on rank 0 the server beside it."""

    def __init__(self, config: TrainConfig, context: Context, model: nn.Module) -> None:
        if config.optimizer not in ("adamw", "sgd", "adafactor"):
            raise ConfigError(f"the optimizer {config.optimizer} is not supported with async_sgd: use adamw or sgd")
        if config.compression == "sign":
            raise ConfigError("compression sign is for ddp: async_sgd takes none, bf16 or fp16")
        # A pair of its own for every remote worker: threads of rank 0 then never share a process group.
        pairs = [dist.new_group([0, rank], backend="gloo") for rank in range(1, context.world_size)]
        super().__init__(config, context, model)
        self.pairs = dict(enumerate(pairs, start=1))
        self.meters = Meters(context.device, counts_host=context.rank == context.node_ranks[0])
        self.push_type = CAST_TYPES[config.compression] or torch.float32

    def replica_ranks(self) -> list[int]:
        """Return this rank alone."""
        return [self.context.rank]

    def make_optimizer(self) -> Any:
        """Return nothing: the server has the optimizer."""
        return None

    def run(self, dataset: Any, options: Options, stop: StopFlag) -> str:
        """Train; return the reason of the end."""
        server = Server(self, options) if self.context.rank == 0 else None
        if server is not None:
            server.serve()
        start = self.context.gather(server.steps_taken if server else torch.zeros(self.context.world_size))[0]
        steps = int(start[self.context.rank])
        batches = data.batches(
            dataset,
            self.config,
            list(self.context.batch_of_rank),
            self.context.rank,
            num_micro_batches=self.context.micro_batches,
            start_sample=steps * self.context.global_batch_size,
        )
        counted = not getattr(dataset, "fixed_tokens", False)
        waiting = time.perf_counter()
        reply = server.core.first(0) if server else self._receive()
        while not reply.stop:
            write_back(reply.weights, self.parameters)
            seed_step(self.config.seed, self.context.rank, steps)
            steps += 1
            push = self._gradient(batches, time.perf_counter() - waiting, stop, counted=counted)
            waiting = time.perf_counter()
            reply = server.core.push(push) if server else self._send(push)
        reason = server.close(stop) if server else ""
        self.context.barrier()
        return reason

    def _gradient(self, batches: Any, waited_seconds: float, stop: StopFlag, *, counted: bool) -> Push:
        """Compute one gradient; ``waited_seconds``: for the server, since the last one."""
        start = time.perf_counter()
        micro_batches = [next(batches) for _ in range(self.context.micro_batches)]
        data_seconds = time.perf_counter() - start
        tokens = max(1, sum(int((labels != data.IGNORED).sum()) for _, labels in micro_batches))
        if counted:
            self.expect(tokens)
        while True:
            loss = torch.zeros((), device=self.device)
            for index, (inputs, labels) in enumerate(micro_batches):
                moved = inputs.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)
                loss = loss + self.forward_backward(*moved, last=index == len(micro_batches) - 1)
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
        return Push(worker=self.context.rank, gradient=gradient, row=row)

    def _send(self, push: Push) -> Reply:
        """Push to the server on rank 0 and wait for its answer."""
        pair = self.pairs[self.context.rank]
        dist.send(push.row, dst=0, group=pair)
        dist.send(push.gradient.to(self.push_type), dst=0, group=pair)
        return self._receive()

    def _receive(self) -> Reply:
        pair = self.pairs[self.context.rank]
        header = torch.zeros(1)
        dist.recv(header, src=0, group=pair)
        if bool(header[0]):
            return Reply(weights=torch.empty(0), stop=True)
        weights = torch.empty(sum(p.numel() for p in self.parameters))
        dist.recv(weights, src=0, group=pair)
        return Reply(weights=weights, stop=False)


class Server:
    """The parameter server of rank 0 with its threads, optimizer, metrics and checkpoints."""

    def __init__(self, engine: AsyncEngine, options: Options) -> None:
        self.engine, self.config = engine, engine.config
        context = engine.context
        self.num_workers = context.world_size
        self.warmup_steps = min(float(self.config.warmup_steps), options.warmup_limit)
        weights = flatten(engine.parameters).cpu()
        self._prepare_optimizer(weights, [p.shape for p in engine.parameters])
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
                strength=float(settings.get("delay_compensation", 0.04)),
                adaptive=bool(settings.get("delay_compensation_adaptive", False)),
            ),
            step=self._step,
            on_applied=self._note,
        )
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
        self._pending: list[tuple[int, torch.Tensor]] = []
        self._own_seconds = [0.0] * self.num_workers
        self._joules = torch.full((self.num_workers, 2), math.nan, dtype=torch.float64)
        self._saved_round = self._reported = self.core.applied // self.num_workers
        self._threads: list[threading.Thread] = []

    def _prepare_optimizer(self, weights: torch.Tensor, shapes: list[torch.Size]) -> None:
        """Build the optimizer over views of the flat weights, on the host."""
        sizes = [shape.numel() for shape in shapes]
        self._views = [nn.Parameter(v.view(s)) for v, s in zip(torch.split(weights, sizes), shapes, strict=True)]
        self._sizes = sizes
        betas = (momentum_beside_asynchrony(self.num_workers), ADAM_BETAS[1])
        self.optimizer = build(replace(self.config, device_kind="cpu"), nn.ParameterList(self._views), betas)

    def _step(self, gradient: torch.Tensor, round_: float) -> None:
        """Apply one gradient to the weights."""
        if self.config.gradient_clip_norm > 0:
            gradient.mul_((self.config.gradient_clip_norm / (gradient.norm() + 1e-6)).clamp(max=1.0))
        for view, piece in zip(self._views, torch.split(gradient, self._sizes), strict=True):
            view.grad = piece.view_as(view)
        self._rate = learning_rate(self.config, round_, self.warmup_steps)
        set_learning_rate(self.optimizer, self._rate)
        self.optimizer.step()

    def serve(self) -> None:
        """Start: hand out the first weights, one thread for every remote worker."""
        context, config = self.engine.context, self.config
        self.telemetry.start(
            strategy=config.strategy,
            world_size=self.num_workers,
            backend="gloo",
            device=context.device,
            num_parameters=self.engine.num_parameters,
            meters=self.engine.meters,
        )
        self._round_start = time.perf_counter()
        self.core.start()
        for worker, pair in self.engine.pairs.items():
            thread = threading.Thread(target=self._attend, args=(worker, pair), name=f"worker-{worker}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _attend(self, worker: int, pair: Any) -> None:
        """Speak with one remote worker until it is told to stop, or is gone."""
        try:
            reply = self.core.first(worker)
            while True:
                dist.send(torch.tensor([float(reply.stop)]), dst=worker, group=pair)
                if reply.stop:
                    return
                dist.send(reply.weights, dst=worker, group=pair)
                row = torch.zeros(len(FIELDS), dtype=torch.float64)
                dist.recv(row, src=worker, group=pair)
                gradient = torch.empty(len(self.core.weights), dtype=self.engine.push_type)
                dist.recv(gradient, src=worker, group=pair)
                reply = self.core.push(Push(worker=worker, gradient=gradient.float(), row=row))
        except RuntimeError as problem:
            print(f"worker {worker} is gone: {str(problem).splitlines()[0]}", flush=True)
            self.core.leave(worker)

    def _note(self, pushes: list[Push], bound: int) -> None:
        """Log the delays of an update, and a step event for every full round; called by the server, locked."""
        for push in pushes:
            own = float(push.row[2] - push.row[3] - push.row[4])
            self._own_seconds[push.worker] = own
            self._joules[push.worker] = push.row[DEVICE_JOULES : DEVICE_JOULES + 2]
            self.steps_taken[push.worker] += 1
            line = {
                "update": self.core.version,
                "worker": push.worker,
                "staleness": push.staleness,
                "bound": bound,
                "compute_seconds": own,
            }
            self._delays.write(json.dumps(line) + "\n")
            self._pending.append((push.worker, push.row))
        self._delays.flush()
        while len(self._pending) >= self.num_workers:
            taken, self._pending = self._pending[: self.num_workers], self._pending[self.num_workers :]
            rows = torch.stack([row for _, row in taken])
            samples = sum(self.engine.context.batch_of_rank[worker] for worker, _ in taken)
            now = time.perf_counter()
            self._reported += 1
            event = step_event(self._reported, rows, self._rate, samples)
            event["step_seconds"], self._round_start = now - self._round_start, now
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

    def close(self, stop: StopFlag) -> str:
        """Wait for the workers, write the last checkpoint, end the log; return the reason."""
        for thread in self._threads:
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
        }
        position = Position(self._reported, int(self.steps_taken.sum()) * self.config.sequence_length)
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
