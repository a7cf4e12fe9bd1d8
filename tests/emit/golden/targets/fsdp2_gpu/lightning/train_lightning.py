"""Trains the bundle's model with Lightning: same data, same order, same schedule as the bundle's own program.

    bash launch.sh --steps 1000 --data corpus.txt

Model and data are those of ``build_model`` and ``build_data`` in the bundle's train.py; trainer.json holds the
arguments of ``Trainer``.
"""

import argparse
import json
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUNDLE = HERE.parents[1]
sys.path.append(str(BUNDLE))

import torch
import train as bundle
from lightning import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import ModelParallelStrategy
from stratadvisor_runtime.config import load
from stratadvisor_runtime.data import IGNORED, batches
from stratadvisor_runtime.distributed import leave
from stratadvisor_runtime.engine import initial_value
from stratadvisor_runtime.fsdp import fill_shard
from stratadvisor_runtime.optimizer import build, learning_rate, set_learning_rate
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class Planned(LightningModule):
    """The bundle's model, its share of the data, and the plan's schedule."""

    def __init__(self, config, data):
        super().__init__()
        self.config, self.data = config, data
        self.share = config.groups[0]
        self.model = bundle.build_model(config)
        self.total, self.reported = 0.0, 0

    def configure_model(self):
        """Divide every layer and the rest, then fill this process's parts; no process ever holds the whole model."""
        if hasattr(self.model, "unshard"):
            return
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        mesh = self.device_mesh["data_parallel"]
        for layer in self.model.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(self.model, mesh=mesh, mp_policy=policy)
        device = self.trainer.strategy.root_device
        self.model.to_empty(device=device)
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                full = initial_value(self.model, name, parameter, device, self.config.seed).to(parameter.dtype)
                fill_shard(parameter, full, mesh.get_group())

    def configure_optimizers(self):
        return build(self.config, self.model)

    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        """Clip here: Lightning refuses to for a fused optimizer beside 16 bits, where bf16 has nothing to unscale."""
        if gradient_clip_val:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), gradient_clip_val)

    def train_dataloader(self):
        shares = [self.share.batch_per_device] * self.trainer.world_size
        return batches(
            bundle.build_data(self.config, self.data),
            self.config,
            shares,
            self.trainer.global_rank,
            num_micro_batches=self.share.gradient_accumulation_steps,
            start_sample=self.global_step * sum(shares),
        )

    def on_train_batch_start(self, batch, batch_index):
        for optimizer in self.trainer.optimizers:
            set_learning_rate(optimizer, learning_rate(self.config, self.global_step, self.config.warmup_steps))

    def training_step(self, batch, batch_index):
        inputs, labels = batch
        loss = self.model(inputs, labels) / (labels != IGNORED).sum()
        self.total = self.total + loss.detach() / self.share.gradient_accumulation_steps
        return loss

    def on_train_batch_end(self, outputs, batch, batch_index):
        if self.global_step > self.reported:
            mean = float(self.trainer.strategy.reduce(self.total, reduce_op="mean"))
            self.total, self.reported = 0.0, self.global_step
            if self.trainer.is_global_zero:
                print(f"step {self.global_step} loss {mean:.6f}", flush=True)

    def on_train_start(self):
        self.reported = self.global_step


def main():
    parser = argparse.ArgumentParser(description="Train the bundle's model with Lightning.")
    parser.add_argument("--steps", type=int, default=None, metavar="N", help="end at optimizer step N")
    parser.add_argument("--data", type=Path, default=None, metavar="FILE", help="text, .bin or .npy tokens")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")
    chosen, config = parser.parse_args(), load(BUNDLE / "train_config.json")
    seed_everything(config.seed)
    arguments = json.loads((HERE / "trainer.json").read_text(encoding="utf-8"))
    if "LOCAL_WORLD_SIZE" in os.environ:  # as many processes as the launcher started
        arguments["devices"] = int(os.environ["LOCAL_WORLD_SIZE"])
        arguments["num_nodes"] = int(os.environ["WORLD_SIZE"]) // arguments["devices"]
    if chosen.steps is not None:
        arguments["max_steps"] = chosen.steps
    world_size = arguments["devices"] * arguments["num_nodes"]
    arguments["strategy"] = ModelParallelStrategy(data_parallel_size=world_size, tensor_parallel_size=1)
    folder = Path(os.environ.get("STRATADVISOR_RUN_DIR", BUNDLE / "run")) / "lightning"
    keep = ModelCheckpoint(
        dirpath=folder, every_n_train_steps=config.checkpoint_interval_steps or None, save_top_k=-1, save_last=True
    )
    trainer = Trainer(**arguments, callbacks=[keep], default_root_dir=folder)
    last = folder / "last.ckpt"
    trainer.fit(Planned(config, chosen.data), ckpt_path=last if chosen.resume and last.exists() else None)
    leave()


if __name__ == "__main__":
    main()
