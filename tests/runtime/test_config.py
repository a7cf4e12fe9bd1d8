from __future__ import annotations

import json
from pathlib import Path

import pytest
from runtime_bundle import configuration, group

from stratadvisor.runtime.config import ConfigError, GroupConfig, ModelConfig, load, parse
from stratadvisor.schema.workload import ModelShape


def test_a_file_is_loaded_with_its_directory(tmp_path: Path) -> None:
    path = tmp_path / "train_config.json"
    path.write_text(json.dumps(configuration(learning_rate=1)))
    config = load(path)
    assert config.directory == tmp_path.resolve()
    assert config.learning_rate == 1.0
    assert config.world_size == 2
    assert isinstance(config.groups[0], GroupConfig)


def test_the_model_has_the_fields_of_the_shape() -> None:
    assert set(ModelConfig.__dataclass_fields__) == set(ModelShape.model_fields)


def test_ranks_follow_the_groups_in_order() -> None:
    config = parse(configuration(groups=[group(num_nodes=2, node_class="fast"), group(node_class="slow")]))
    assert [config.group_of_rank(rank).node_class for rank in range(7)] == ["fast"] * 4 + ["slow"] * 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine": "horovod"}, "engine must be one of single, ddp"),
        ({"groups": []}, "at least one group"),
        ({"groups": {}}, "groups must be a list, not an object"),
        ({"groups": [group(batch_per_device=5)]}, "5 sequences cannot be split into 2 micro-batches of 1 to 2"),
        ({"groups": [group(batch_per_device=1)]}, "cannot be split"),
        ({"groups": [group(num_nodes=0)]}, r"groups\[0\].num_nodes must be at least 1"),
        ({"groups": [group(speed=1)]}, r"groups\[0\] has the unknown key 'speed'"),
        ({"global_batch_size": 9}, "global_batch_size is 9, but the shares of the groups sum to 8"),
        ({"sequence_length": "32"}, "sequence_length must be a whole number, not '32'"),
        ({"sequence_length": True}, "sequence_length must be a whole number, not true"),
        ({"sequence_length": 0}, "sequence_length must be at least 1"),
        ({"learning_rate": -1.0}, "learning_rate must be positive"),
        ({"learning_rate": float("nan")}, "learning_rate must be a finite number"),
        ({"learning_rate": None}, "learning_rate must be a number, not null"),
        ({"compile_model": 1}, "compile_model must be true or false, not 1"),
        ({"settings": {"a": [1]}}, "settings must be an object of plain values"),
        ({"warmup_steps": -1}, "warmup_steps must not be negative"),
        ({"speed": 1}, "unknown key 'speed'"),
        (
            {"engine": "fsdp2", "groups": [group(), group(gradient_accumulation_steps=4)]},
            "needs the same gradient_accumulation_steps",
        ),
    ],
)
def test_each_mistake_is_one_sentence(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse(configuration(**changes))
    assert "\n" not in str(caught.value)


def test_a_missing_key_is_named() -> None:
    data = configuration()
    del data["model"]
    with pytest.raises(ConfigError, match="lacks the key 'model'"):
        parse(data)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"{", "is not JSON: line 1"), (b"[]", "must be an object, not a list"), (b"\xff\xfe\x00", "cannot be read")],
)
def test_an_unreadable_file_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "train_config.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_and_a_directory_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load(tmp_path / "none.json")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path)
