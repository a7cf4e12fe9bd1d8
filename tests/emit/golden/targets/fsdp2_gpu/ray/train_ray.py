"""Runs the bundle's own training program in the workers of Ray Train.

    bash launch.sh --steps 1000 --data corpus.txt

Model and data are those of ``build_model`` and ``build_data`` in the bundle's train.py.
"""

import argparse
import os
import sys
from pathlib import Path

BUNDLE = Path(__file__).resolve().parents[2]
sys.path.append(str(BUNDLE))

import ray
from ray.train import RunConfig, ScalingConfig, TrainingFailedError
from ray.train.torch import TorchConfig, TorchTrainer

# Decided by the plan; a variable that is set already wins.
ENVIRONMENT = {
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
}
TOLD = "error: "  # before a problem that the user can solve


def worker(given):
    """Train in one worker; Ray has opened the process group and set the ranks."""
    here = next(p for p in (Path(given["bundle"]), Path.cwd()) if (p / "train_config.json").is_file())
    sys.path.append(str(here))
    import train as bundle
    from stratadvisor_runtime.config import TrainingError, load
    from stratadvisor_runtime.distributed import session
    from stratadvisor_runtime.loop import Options, train

    config = load(here / "train_config.json")
    data = given["data"] and Path(given["data"])
    folder = Path(given["run_directory"])
    options = Options(steps=given["steps"], data=data, resume=given["resume"], run_directory=folder)
    try:
        with session(config) as context:
            train(config, context, options, bundle.build_model, bundle.build_data)
    except TrainingError as problem:  # as a type that Ray's other processes know
        raise RuntimeError(TOLD + str(problem)) from None
    ray.train.report({"run_directory": str(folder)})


def scaling():
    """Return the plan's workers, one for each device."""
    return ScalingConfig(
        num_workers=16,
        use_gpu=True,
        resources_per_worker={"CPU": 1 + 0, "GPU": 1},
        placement_strategy="PACK",
    )


def connect(needed):
    """Join the cluster of RAY_ADDRESS, or start one on this machine alone."""
    environment = {"env_vars": {name: os.environ.get(name, value) for name, value in ENVIRONMENT.items()}}
    if os.environ.get("RAY_ADDRESS"):
        ray.init(runtime_env=environment)
        return
    sys.exit("this plan uses 2 nodes: start Ray on each of them and set RAY_ADDRESS (README.md)")


def main():
    parser = argparse.ArgumentParser(description="Train as planned in the workers of Ray Train.")
    parser.add_argument("--steps", type=int, default=None, metavar="N", help="end at optimizer step N")
    parser.add_argument("--data", type=Path, default=None, metavar="FILE", help="text, .bin or .npy tokens")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")
    chosen = parser.parse_args()
    folder = Path(os.environ.get("STRATADVISOR_RUN_DIR", BUNDLE / "run")).resolve()
    plan = scaling()
    given = {
        "bundle": str(BUNDLE),
        "run_directory": str(folder),
        "steps": chosen.steps,
        "data": chosen.data and str(chosen.data.resolve()),
        "resume": chosen.resume,
    }
    connect(plan.num_workers * plan.resources_per_worker["CPU"])
    try:
        trainer = TorchTrainer(
            worker,
            train_loop_config=given,
            torch_config=TorchConfig(backend="cpu:gloo,cuda:nccl"),
            scaling_config=plan,
            run_config=RunConfig(name="stratadvisor", storage_path=str(folder / "ray")),
        )
        trainer.fit()
    except TrainingFailedError as problem:
        told = [line.partition(TOLD)[2] for line in str(problem).splitlines() if f"RuntimeError: {TOLD}" in line]
        if not told:
            raise
        print(f"{TOLD}{told[0]}", file=sys.stderr)
        return 2
    finally:
        ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
