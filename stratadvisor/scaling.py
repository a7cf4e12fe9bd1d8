"""Scale a plan down to the machine at hand, for a validation run that is smaller than the plan and says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stratadvisor.costs.parameters import count_parameters
from stratadvisor.schema.plan import Plan
from stratadvisor.schema.profile import ClusterProfile, DeviceProfile
from stratadvisor.schema.workload import ModelShape, Workload

SMALL_LAYERS, SMALL_WIDTH, SMALL_FFN, SMALL_HEAD, SMALL_VOCABULARY, SMALL_SEQUENCE = 2, 256, 768, 64, 4096, 256
"""A model that any machine trains in seconds, for hardware that is not the plan's at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrunk:
    """What to plan for the machine at hand, and how it differs, in words."""

    workload: Workload
    said: str
    comparable: bool
    """Whether it runs on the plan's own kind of device, so that its ratio says something about the plan."""


def substitutes(plan: Plan) -> tuple[str, ...]:
    """Return the strategies that stand for the plan's where that does not apply here, the best first.

    One that keeps the plan's way of synchronizing shows whether its loss falls; the fastest here may be of another.
    """
    exact = ("ddp", "single")
    return {
        "hierarchical": ("hierarchical", *exact),
        "local_sgd": ("diloco", *exact),
        "asynchronous": ("async_sgd", *exact),
    }.get(plan.synchronization.mode, exact)


def fits_here(plan: Plan, devices: tuple[DeviceProfile, ...]) -> bool:
    """Return whether the plan can run on this machine as it is."""
    if len(plan.groups) != 1 or plan.groups[0].num_nodes != 1:
        return False
    group = plan.groups[0]
    if plan.device_kind == "cpu":
        return True
    alike = [d for d in devices if d.healthy is not False and same_device(group.device_name, d)]
    return len(alike) >= group.devices_per_node


def same_device(name: str, device: DeviceProfile) -> bool:
    """Return whether a plan's device name and a device of this machine are the same product."""
    from stratadvisor.catalog import devices as catalog

    spec = catalog.lookup(name)
    return device.name == name or (spec is not None and spec.key == device.catalog_key)


def shrink(plan: Plan, local: ClusterProfile, fits: Callable[[Workload], bool]) -> Shrunk:
    """Return a workload that fits the machine at hand: the same model if it can, fewer layers, or a small stand-in."""
    work, group = plan.workload, plan.groups[0]
    here = [d for node in local.nodes for d in node.devices]
    asked = sum(g.num_nodes * g.devices_per_node for g in plan.groups)
    ranks = f"{len(here)} of {asked} ranks" if len(here) < asked else f"{len(here)} ranks"
    batch = max(len(here), plan.batch.global_batch_size * len(here) // asked)
    if here and all(same_device(group.device_name, d) for d in here):
        layers = work.model.num_layers
        while True:
            smaller = work.model_copy(update={"model": with_layers(work.model, layers), "global_batch_size": batch})
            if layers <= 1 or not work.model.is_transformer or fits(smaller):
                whole = layers == work.model.num_layers
                what = "the whole model" if whole else f"{layers} of {work.model.num_layers} layers"
                return Shrunk(workload=smaller, said=f"{ranks}, {what}, on the plan's own device", comparable=True)
            layers = (layers + 1) // 2
    model = stand_in(work.model)
    small = work.model_copy(
        update={
            "model": model,
            "sequence_length": min(work.sequence_length, SMALL_SEQUENCE),
            "global_batch_size": 4 * max(1, len(here)),
            "precision": "auto",
            "method": "full" if work.method == "qlora" else work.method,
        }
    )
    name = here[0].name if here else "this machine"
    said = (
        f"{ranks} on {name}, not {group.device_name}, and a stand-in of {model.num_layers} layers x {model.hidden_size}"
        " instead of the model: it shows that the files start and the loss falls; its times say nothing of the plan"
    )
    return Shrunk(workload=small, said=said, comparable=False)


def with_layers(shape: ModelShape, layers: int) -> ModelShape:
    """Return a transformer with fewer layers, its parameters counted again."""
    if layers == shape.num_layers or not shape.is_transformer:
        return shape
    counts = count_parameters(shape)
    ends = counts.embedding + counts.head
    active = (shape.num_active_parameters - ends) / shape.num_layers
    return shape.model_copy(
        update={
            "name": f"{shape.name} with {layers} layers",
            "num_layers": layers,
            "num_dense_layers": min(shape.num_dense_layers, layers),
            "num_parameters": round(ends + counts.per_layer * layers),
            "num_active_parameters": round(ends + active * layers),
        }
    )


def stand_in(shape: ModelShape) -> ModelShape:
    """Return a small dense transformer of the same kind (MLP, norms, positions)."""
    if not shape.is_transformer:
        return shape
    heads = SMALL_WIDTH // SMALL_HEAD
    key_value_heads = heads // 2 if shape.num_key_value_heads < shape.num_attention_heads else heads
    vocabulary = min(shape.vocab_size, SMALL_VOCABULARY)
    attention = SMALL_WIDTH * (2 * heads + 2 * key_value_heads) * SMALL_HEAD
    mlp = (3 if shape.gated_mlp else 2) * SMALL_WIDTH * SMALL_FFN
    positions = shape.max_sequence_length * SMALL_WIDTH if shape.learned_positions else 0
    ends = vocabulary * SMALL_WIDTH * (1 if shape.tied_embeddings else 2) + positions
    total = ends + SMALL_LAYERS * (attention + mlp + 2 * SMALL_WIDTH) + SMALL_WIDTH
    return shape.model_copy(
        update={
            "name": f"stand-in for {shape.name}",
            "num_parameters": total,
            "num_active_parameters": total,
            "num_layers": SMALL_LAYERS,
            "hidden_size": SMALL_WIDTH,
            "num_attention_heads": heads,
            "num_key_value_heads": key_value_heads,
            "head_dim": SMALL_HEAD,
            "ffn_hidden_size": SMALL_FFN,
            "vocab_size": vocabulary,
            "num_experts": 0,
            "num_experts_per_token": 0,
            "num_shared_experts": 0,
            "num_dense_layers": 0,
            "dense_ffn_hidden_size": 0,
        }
    )
