from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from runtime_bundle import TINY, configuration

from stratadvisor.runtime import data
from stratadvisor.runtime.config import ConfigError, TrainConfig, parse


def config(**changes: object) -> TrainConfig:
    return parse(configuration(**changes))


def test_synthetic_tokens_repeat_for_an_index_and_mostly_follow_one_rule() -> None:
    dataset = data.SyntheticTokens(1000, 512, seed=1)
    inputs, labels = dataset[7]
    again, _ = dataset[7]
    assert torch.equal(inputs, again)
    assert torch.equal(inputs[1:], labels[:-1])
    assert int(inputs.max()) < 256
    # The rule: each token has one successor. Two neighbours are both unreplaced with probability 0.9 * 0.9 at least.
    successors: dict[int, list[int]] = {}
    for index in range(20):
        for a, b in zip(*(t.tolist() for t in dataset[index]), strict=True):
            successors.setdefault(a, []).append(b)
    usual = sum(max(map(followers.count, set(followers))) for followers in successors.values())
    assert usual / sum(map(len, successors.values())) > 0.7


def test_text_is_read_as_bytes(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"abcdefghij")
    windows = data.open_tokens(path, sequence_length=4, vocab_size=256)
    assert len(windows) == 2
    inputs, labels = windows[1]
    assert bytes(inputs.tolist()) == b"efgh"
    assert bytes(labels.tolist()) == b"fghi"


def test_a_small_vocabulary_keeps_the_frequent_bytes_apart(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"aaaabbbccd" * 3)
    inputs, _ = data.open_tokens(path, sequence_length=10, vocab_size=3)[0]
    assert inputs.tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_token_files_are_mapped(tmp_path: Path) -> None:
    tokens = np.arange(100, dtype=np.uint16)
    tokens.tofile(tmp_path / "tokens.bin")
    np.save(tmp_path / "narrow.npy", tokens)
    np.save(tmp_path / "wide.npy", tokens.astype(np.int64))
    for name in ("tokens.bin", "narrow.npy", "wide.npy"):
        windows = data.open_tokens(tmp_path / name, sequence_length=8, vocab_size=100)
        assert len(windows) == 12
        inputs, labels = windows[3]
        assert inputs.tolist() == list(range(24, 32))
        assert labels.tolist() == list(range(25, 33))
        assert inputs.dtype == torch.int64


def test_bad_files_are_told_in_one_sentence(tmp_path: Path) -> None:
    np.arange(100, dtype=np.uint16).tofile(tmp_path / "tokens.bin")
    np.save(tmp_path / "floats.npy", np.zeros(10))
    (tmp_path / "short.txt").write_bytes(b"abc")
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "fake.npy").write_bytes(b"no numpy file at all")
    for name, message in (
        ("missing.txt", "cannot be read"),
        ("tokens.bin", "has the token 99"),
        ("floats.npy", "whole numbers"),
        ("short.txt", "fewer than one sequence"),
        ("empty.txt", "is empty"),
        ("fake.npy", "not a NumPy file"),
    ):
        with pytest.raises(ConfigError, match=message):
            data.open_tokens(tmp_path / name, sequence_length=8, vocab_size=99 if "bin" in name else 256)


def test_a_directory_is_no_data(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        data.open_tokens(tmp_path, sequence_length=8, vocab_size=256)


def test_an_encoder_learns_masked_positions_only() -> None:
    masked = data.token_dataset(config(model=TINY | {"family": "encoder"}), None)
    share = 0.0
    for index in range(100):
        inputs, labels = masked[index]
        counts = labels != data.IGNORED
        assert counts.any()
        assert (inputs[counts] == 255).all()
        share += counts.float().mean().item() / 100
    # 15 % of 32 positions, and one position always: 0.15 + 0.85 / 32 = 0.177; 3200 draws deviate by about 0.007
    assert math.isclose(share, 0.177, abs_tol=0.035)
    assert not hasattr(masked, "fixed_tokens")


def test_a_file_for_a_foreign_module_needs_a_dataset_of_ones_own() -> None:
    with pytest.raises(ConfigError, match="replace build_data"):
        data.token_dataset(config(model={"name": "mine", "family": "module", "factory": "a:b"}), Path("images"))


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_come_in_the_order_of_the_sampler(workers: int) -> None:
    dataset = data.SyntheticTokens(256, 16, seed=0, num_samples=64)
    stream = data.batches(dataset, config(data_loader_workers=workers), [3, 1], 0, num_micro_batches=2, start_sample=0)
    first = [next(stream)[0] for _ in range(4)]
    assert [len(b) for b in first] == [2, 1, 2, 1]
    again = data.batches(dataset, config(), [3, 1], 0, num_micro_batches=2, start_sample=4)
    assert torch.equal(next(again)[0], first[2])


def test_a_folder_of_shards_is_one_dataset_in_the_order_of_names(tmp_path: Path) -> None:
    np.arange(0, 17, dtype=np.uint16).tofile(tmp_path / "a.bin")  # two windows of 8 and the next token
    np.save(tmp_path / "b.npy", np.arange(100, 130, dtype=np.int64))  # three
    (tmp_path / "README.md").write_text("not a shard")
    dataset = data.token_dataset(config(sequence_length=8), tmp_path)
    assert len(dataset) == 2 + 3
    assert getattr(dataset, "fixed_tokens", False)
    assert dataset[1][0].tolist() == list(range(8, 16))
    assert dataset[2][0].tolist() == list(range(100, 108))
    assert dataset[4][1].tolist() == list(range(117, 125))


def test_a_folder_without_shards_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no token files: shards end in \.bin or \.npy"):
        data.token_dataset(config(), tmp_path)
