"""Trains the bundle's model with Accelerate: same data, same order, same schedule as the bundle's own program.

    bash launch.sh --steps 1000 --data corpus.txt

Model and data are those of ``build_model`` and ``build_data`` in the bundle's train.py.
"""

import argparse
import os
import re
import sys
from pathlib import Path

BUNDLE = Path(__file__).resolve().parents[2]
sys.path.append(str(BUNDLE))

import torch
import train as bundle
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, DistributedType, GradientAccumulationPlugin, set_seed
from stratadvisor_runtime.config import load
from stratadvisor_runtime.data import IGNORED, batches
from stratadvisor_runtime.distributed import leave
from stratadvisor_runtime.engine import materialize
from stratadvisor_runtime.optimizer import build, learning_rate, parameter_groups, set_learning_rate


def options():
    parser = argparse.ArgumentParser(description="Train the bundle's model with Accelerate.")
    parser.add_argument("--steps", type=int, default=None, metavar="N", help="end at optimizer step N")
    parser.add_argument("--data", type=Path, default=None, metavar="FILE", help="text, .bin or .npy tokens")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")
    return parser.parse_args()


def make_model(config, accelerator):
    """Return the model; under FSDP2 only the first process fills it, and Accelerate hands out the parts."""
    model = bundle.build_model(config)
    if accelerator.distributed_type == DistributedType.FSDP and not accelerator.is_main_process:
        return model.to_empty(device="cpu")  # pages that nobody touches take no memory
    materialize(model, torch.device("cpu"), config.seed)
    return model


def make_optimizer(config, model, accelerator):
    plugin = accelerator.state.deepspeed_plugin
    if plugin is None or "optimizer" not in plugin.deepspeed_config:
        return build(config, model)
    from accelerate.utils import DummyOptim  # ds_config.json names the optimizer

    return DummyOptim(parameter_groups(model, config.weight_decay), config.learning_rate, config.weight_decay)


def main():
    chosen, config = options(), load(BUNDLE / "train_config.json")
    share = config.groups[0]
    accumulation = share.gradient_accumulation_steps
    accelerator = Accelerator(
        # FSDP2 would keep whole gradients between micro-batches; reducing each keeps what the plan counted with.
        gradient_accumulation_plugin=GradientAccumulationPlugin(
            num_steps=accumulation, sync_each_batch=config.engine in ("fsdp2", "hsdp")
        ),
        kwargs_handlers=[DistributedDataParallelKwargs(gradient_as_bucket_view=True)],
    )
    wanted = {"fsdp2": "FSDP", "hsdp": "FSDP", "deepspeed": "DEEPSPEED"}.get(config.engine)
    if wanted and accelerator.distributed_type != wanted:
        sys.exit(f"Accelerate runs {accelerator.distributed_type}, the plan needs {wanted}: start with launch.sh")
    set_seed(config.seed)
    world_size, rank = accelerator.num_processes, accelerator.process_index
    model = make_model(config, accelerator)
    model, optimizer = accelerator.prepare(model, make_optimizer(config, model, accelerator))
    folder = Path(os.environ.get("STRATADVISOR_RUN_DIR", BUNDLE / "run")) / "accelerate"
    step = 0
    if chosen.resume:
        found = {int(m[1]): p for p in folder.glob("step-*") if (m := re.fullmatch(r"step-(\d+)", p.name))}
        if found:
            step = max(found)
            accelerator.load_state(str(found[step]))
    shares = [share.batch_per_device] * world_size
    feed = batches(
        bundle.build_data(config, chosen.data),
        config,
        shares,
        rank,
        num_micro_batches=accumulation,
        start_sample=step * sum(shares),
    )
    last = chosen.steps or config.total_steps
    model.train()
    while step < last:
        total = torch.zeros((), device=accelerator.device)
        set_learning_rate(optimizer, learning_rate(config, step, config.warmup_steps))
        for _ in range(accumulation):
            inputs, labels = (part.to(accelerator.device, non_blocking=True) for part in next(feed))
            with accelerator.accumulate(model):
                with accelerator.autocast():
                    loss = model(inputs, labels) / (labels != IGNORED).sum()
                accelerator.backward(loss)
                if accelerator.sync_gradients and config.gradient_clip_norm > 0:
                    accelerator.clip_grad_norm_(model.parameters(), config.gradient_clip_norm)
                optimizer.step()
                optimizer.zero_grad()
            total += loss.detach() / accumulation
        step += 1
        mean = accelerator.reduce(total, reduction="mean").item()
        accelerator.print(f"step {step} loss {mean:.6f}", flush=True)
        if step == last or (config.checkpoint_interval_steps and step % config.checkpoint_interval_steps == 0):
            accelerator.save_state(str(folder / f"step-{step}"))
    leave()
    accelerator.end_training()


if __name__ == "__main__":
    main()
