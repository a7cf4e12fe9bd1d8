"""Trains the bundle's model with the Trainer of transformers, as training_arguments.json says.

    bash launch.sh --steps 1000 --data corpus.txt

Model and data are those of ``build_model`` and ``build_data`` in the bundle's train.py. The Trainer shuffles by itself.
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
from stratadvisor_runtime.config import load
from stratadvisor_runtime.data import IGNORED
from stratadvisor_runtime.distributed import leave
from stratadvisor_runtime.engine import materialize
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments


class ForTrainer(torch.nn.Module):
    """The bundle's model with the Trainer's call: named tensors in, the mean loss of a micro-batch out."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, labels):
        return {"loss": self.model(input_ids, labels) / (labels != IGNORED).sum()}


class Named(Dataset):
    """The bundle's (inputs, labels) under the names that ``forward`` has."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        inputs, labels = self.dataset[index]
        return {"input_ids": inputs, "labels": labels}


def options():
    parser = argparse.ArgumentParser(description="Train the bundle's model with the Trainer of transformers.")
    parser.add_argument("--steps", type=int, default=None, metavar="N", help="end at optimizer step N")
    parser.add_argument("--data", type=Path, default=None, metavar="FILE", help="text, .bin or .npy tokens")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")
    return parser.parse_args()


def arguments(run_directory):
    """Return the arguments of the file, its relative names taken from the folder where it lies."""
    given = json.loads((HERE / "training_arguments.json").read_text(encoding="utf-8"))
    if isinstance(given.get("deepspeed"), str):
        given["deepspeed"] = str(HERE / given["deepspeed"])
    given["output_dir"] = str(run_directory)
    return TrainingArguments(**given)


class EndAt(TrainerCallback):
    """Ends at a step without bending the learning-rate schedule, whose length ``max_steps`` of the file decides."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if self.step is not None and state.global_step >= self.step:
            control.should_training_stop = control.should_save = True


def main():
    chosen, config = options(), load(BUNDLE / "train_config.json")
    folder = Path(os.environ.get("STRATADVISOR_RUN_DIR", BUNDLE / "run")) / "huggingface"
    training = arguments(folder)
    model = bundle.build_model(config)
    if config.engine == "fsdp2" and training.process_index > 0:
        model = model.to_empty(device="cpu")  # the first process fills it; pages that nobody touches take no memory
    else:
        materialize(model, torch.device("cpu"), config.seed)
    trainer = Trainer(
        model=ForTrainer(model),
        args=training,
        train_dataset=Named(bundle.build_data(config, chosen.data)),
        callbacks=[EndAt(chosen.steps)],
    )
    wanted = {"fsdp2": "FSDP", "deepspeed": "DEEPSPEED"}.get(config.engine)
    if wanted and trainer.accelerator.distributed_type != wanted:
        sys.exit(f"the Trainer runs {trainer.accelerator.distributed_type}, the plan needs {wanted}")
    trainer.train(resume_from_checkpoint=chosen.resume and any(folder.glob("checkpoint-*")))
    leave()


if __name__ == "__main__":
    main()
