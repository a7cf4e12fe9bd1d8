"""What the emitted program costs beside a loop written by hand, and what telemetry costs: ratios within one run.

    python benchmarks/runtime_overhead.py [--blocks 12] [--steps 10] [--engine ddp fsdp2]

Two ranks over gloo train the same model in turns, a block of steps each, the order changing: the emitted program's
loop, the same loop with telemetry off, a loop written by hand. Printed are medians over the blocks of the ratios to
the neighbouring block by hand, with quartiles, of two clocks: the wall (which sees what others do on this machine) and
the processor time of the ranks (which does not). Steps of a real run are longer, so that its shares are smaller.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from stratadvisor.runtime import data, distributed, model
from stratadvisor.runtime.config import TrainConfig, parse
from stratadvisor.runtime.engine import create
from stratadvisor.runtime.loop import Loop, Options, StopFlag
from stratadvisor.runtime.telemetry import FIELDS

RANKS = 2
BATCH = 4
Block = Callable[[int], None]


def configuration(engine: str, size: int, length: int) -> TrainConfig:
    shape = {
        "name": "benchmark",
        "num_layers": 4,
        "hidden_size": size,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": size // 4,
        "ffn_hidden_size": 4 * size,
        "vocab_size": 1024,
        "max_sequence_length": length,
    }
    group = {"num_nodes": 1, "devices_per_node": RANKS, "micro_batch_size": BATCH, "batch_per_device": BATCH}
    return parse(
        {"strategy": engine, "engine": engine, "model": shape, "groups": [group], "sequence_length": length, "seed": 1}
    )


def emitted(config: TrainConfig, context: Any, folder: Path, *, telemetry: bool) -> Block:
    """Return what runs steps of the loop that ``train.py`` runs."""
    engine = create(config, context, model.build(config))
    dataset = data.token_dataset(config, None)
    options = Options(steps=10**9, data=None, resume=False, run_directory=folder)
    loop = Loop(config, context, engine, dataset, options, StopFlag())
    loop.telemetry.start(
        strategy=config.strategy,
        world_size=context.world_size,
        backend="gloo",
        device=context.device,
        num_parameters=engine.num_parameters,
        meters=loop.meters,
    )
    loop.mark = engine.clock.mark()

    def block(steps: int) -> None:
        for _ in range(steps):
            loop._step()  # noqa: SLF001
            if telemetry:
                loop._report(keep=1)  # noqa: SLF001
            else:
                loop.records.clear()

    return block


def by_hand(config: TrainConfig, context: Any) -> Block:
    """Return the loop that a person writes from torch's documentation."""
    torch.manual_seed(config.seed)
    dataset = data.token_dataset(config, None)
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, shuffle=True)
    batches = iter(DataLoader(dataset, batch_size=BATCH, sampler=sampler))
    net: Any = model.build(config)
    for name, parameter in list(net.named_parameters()):
        if parameter.is_meta:
            owner = net.get_submodule(name.rpartition(".")[0]) if "." in name else net
            value = net.initial_value(name, parameter, context.device, config.seed)
            setattr(owner, name.rpartition(".")[2], torch.nn.Parameter(value))
    if config.engine == "ddp":
        net = DistributedDataParallel(net, gradient_as_bucket_view=True)
    else:
        for layer in net.layers:
            fully_shard(layer)
        fully_shard(net)
    matrices = [p for p in net.parameters() if p.ndim >= 2]
    vectors = [p for p in net.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        lr=config.learning_rate,
        betas=(0.9, 0.95),
        fused=True,
    )
    done = 0

    def block(steps: int) -> None:
        nonlocal done
        for _ in range(steps):
            inputs, labels = next(batches)
            loss = net(inputs, labels) / labels.numel()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            done += 1
            if done % 10 == 0 and context.rank == 0:
                print(f"step {done} loss {loss.item():.4f}", file=sys.stderr)

    return block


def timed(block: Block, steps: int) -> tuple[float, float]:
    """Return (wall, processor) seconds of a step; the processor's are summed over ranks."""
    dist.barrier()
    wall, cpu = time.perf_counter(), time.process_time()
    block(steps)
    dist.barrier()
    spent = torch.tensor([time.perf_counter() - wall, time.process_time() - cpu])
    total = spent.clone()
    dist.all_reduce(total)
    return float(spent[0]) / steps, float(total[1]) / steps


def rank_main(engine: str, blocks: int, steps: int, size: int, length: int, out: Path) -> None:
    torch.set_num_threads(1)
    config = configuration(engine, size, length)
    with distributed.session(config) as context, tempfile.TemporaryDirectory() as folder:
        kinds = {
            "emitted": emitted(config, context, Path(folder), telemetry=True),
            "no telemetry": emitted(config, context, Path(folder), telemetry=False),
            "by hand": by_hand(config, context),
        }
        for block in kinds.values():
            block(3)
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
        for index in range(blocks):
            names = list(kinds)
            for name in names[index % 3 :] + names[: index % 3]:
                found[name].append(timed(kinds[name], steps))
        if context.rank == 0:
            out.write_text(json.dumps(found))


def ratios(found: dict[str, list[list[float]]], one: str, other: str, clock: int) -> str:
    each = [a[clock] / b[clock] for a, b in zip(found[one], found[other], strict=True)]
    low, middle, high = statistics.quantiles(each, n=4)
    return f"{middle:.4f} ({low:.4f} to {high:.4f})"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", nargs="+", default=["ddp", "fsdp2"], choices=["ddp", "fsdp2"])
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--hidden-size", type=int, default=256)
    parser.add_argument("--sequence-length", type=int, default=128)
    chosen = parser.parse_args()
    print(
        f"{RANKS} ranks over gloo, {chosen.blocks} blocks of {chosen.steps} steps, {len(FIELDS)} figures a step",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        for engine in chosen.engine:
            out = Path(folder) / f"{engine}.json"
            call = (engine, chosen.blocks, chosen.steps, chosen.hidden_size, chosen.sequence_length)
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
            command += [__file__, "--rank", json.dumps(call), str(out)]
            variables = os.environ | {"OMP_NUM_THREADS": "1"}
            subprocess.run(command, check=True, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            found = json.loads(out.read_text())
            for clock, name in enumerate(("wall", "processor")):
                step = statistics.median(row[clock] for row in found["by hand"])
                print(f"{engine:<6}{name:<10} by hand {1e3 * step:.1f} ms a step")
                print(f"       emitted over by hand      {ratios(found, 'emitted', 'by hand', clock)}")
                print(f"       telemetry on over off     {ratios(found, 'emitted', 'no telemetry', clock)}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank_main(*json.loads(sys.argv[2]), out=Path(sys.argv[3]))
    else:
        main()
