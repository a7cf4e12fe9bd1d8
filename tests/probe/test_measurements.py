"""Each measurement for real on this machine's CPU, with tiny sizes."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from stratadvisor.probe import compute, data_feed, host_link, memory_bandwidth, pairs, stability, storage, torch_devices
from stratadvisor.probe.crew import Crew
from stratadvisor.probe.found import SweepTimes
from stratadvisor.probe.outcome import UnsupportedHereError

GENEROUS = 300.0


@pytest.fixture(autouse=True)
def keep_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_products_are_timed_for_what_a_cpu_has_and_the_rest_has_a_reason() -> None:
    rates = compute.measure(device="cpu", threads=1, kind="cpu", budget_seconds=0.3, quick=True)
    assert tuple(rates) == compute.PRECISIONS
    for precision in ("fp32", "bf16"):
        assert set(rates[precision].by_edge) <= set(compute.CPU_EDGES[: compute.NUM_QUICK_EDGES])
        assert compute.CPU_EDGES[0] in rates[precision].by_edge
        assert all(rate > 0 for rate in rates[precision].by_edge.values())
    for precision in ("tf32", "fp8"):
        assert not rates[precision].by_edge
        assert precision in rates[precision].reason


def test_sizes_stop_where_the_budget_does() -> None:
    rates = compute.measure(device="cpu", threads=1, kind="cpu", budget_seconds=1e-6)
    assert list(rates["fp32"].by_edge) == [compute.CPU_EDGES[0]]


@pytest.mark.parametrize(
    ("precision", "kind", "capability", "tried"),
    [
        ("bf16", "cuda", (7, 0), False),
        ("bf16", "cuda", (8, 0), True),
        ("fp16", "cuda", (7, 0), True),
        ("tf32", "cuda", (7, 5), False),
        ("fp8", "cuda", (8, 0), False),
        ("fp8", "cuda", (8, 9), True),
        ("fp8", "cuda", (9, 0), True),
        ("bf16", "rocm", None, True),
        ("fp8", "rocm", None, False),
        ("bf16", "cuda", None, False),
        ("fp32", "cuda", None, True),
    ],
)
def test_precisions_follow_the_compute_capability(
    precision: str, kind: str, capability: tuple[int, int] | None, tried: bool
) -> None:
    assert (compute.why_not(precision, kind, capability) == "") is tried


def test_triad_moves_three_arrays() -> None:
    rate = memory_bandwidth.measure("cpu", 1, memory_bytes=200 * 1024**2, budget_seconds=0.05, quick=True)
    assert rate.array_bytes == 10 * 1024**2  # a 20th of the memory
    assert rate.num_samples >= 1
    assert rate.bytes_per_second > 0


@pytest.mark.parametrize(
    ("cache", "memory", "expected"),
    [
        (32 * 1024**2, None, 128 * 1024**2),
        (0, None, 64 * 1024**2),
        (1024**3, None, 512 * 1024**2),
        (32 * 1024**2, 2 * 1024**3, 2 * 1024**3 // 20 // 4096 * 4096),
        (32 * 1024**2, 1000.0, 4096),
    ],
)
def test_arrays_exceed_the_cache_but_not_the_memory(cache: int, memory: float | None, expected: int) -> None:
    assert memory_bandwidth.array_bytes_for(cache, memory) == expected


def test_the_largest_cache_is_read_from_sysfs(tmp_path: Path) -> None:
    for index, text in enumerate(("48K", "1024K", "32M", "rubbish")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(text + "\n")
    assert memory_bandwidth.last_level_cache_bytes(tmp_path) == 32 * 1024**2
    assert memory_bandwidth.last_level_cache_bytes(tmp_path / "absent") == 0


def test_variation_is_that_of_the_timings() -> None:
    assert stability.variation([1.0, 1.0, 1.0]) == 0.0
    assert stability.variation([1.0, 3.0]) == pytest.approx(2**0.5 / 2)
    steady = stability.measure("cpu", 1, budget_seconds=0.1, quick=True)
    assert steady.num_pieces >= 3
    assert steady.variation >= 0
    assert steady.piece_seconds > 0
    assert steady.flops_per_second > 0
    assert 0 < steady.processor_share <= 1


def test_a_small_operation_is_timed_and_takes_longer_with_part_of_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    assert 1e-7 < compute.operation_seconds(1.0, budget_seconds=0.05) < 0.1
    monkeypatch.setattr(compute, "samples", lambda *_, **__: [3.0, 1.0, 2.0, 9.0])  # seconds of processor time
    assert compute.operation_seconds(0.25) == pytest.approx(1.0 / 200 / 0.25)


def test_work_is_counted_by_the_piece_of_time_with_parts() -> None:
    # done at 1, 1.5, 2 and 4: two and a half by 2.5, the last takes 2 s
    assert stability.speeds([0.0, 1.0, 1.5, 2.0, 4.0], 1.0) == pytest.approx([1.0, 2.0, 0.5, 0.5])
    assert stability.speeds([5.0, 7.0], 0.5) == pytest.approx([0.25] * 4)


def test_phases_are_two_speeds_and_noise_is_one() -> None:
    phases = [1.0] * 5 + [0.3] * 5
    found = stability.levels(phases * 3, 0.2)
    assert found is not None
    assert found.speeds == ((0.5, pytest.approx(0.3 / 0.65)), (0.5, pytest.approx(1 / 0.65)))
    assert found.phase_seconds == pytest.approx(29 * 0.2 / 5)
    # slow in a fifth of the time
    rare = stability.levels(([1.0] * 8 + [0.5] * 2) * 3, 0.2)
    assert rare is not None
    assert rare.speeds[0] == (pytest.approx(0.2), pytest.approx(0.5 / 0.9))
    noise = random.Random(1)
    for spread in (0.05, 0.15):
        told = [stability.levels([max(0.01, noise.gauss(1, spread)) for _ in range(30)], 0.2) for _ in range(500)]
        assert sum(one is not None for one in told) <= 5
    assert stability.levels(([1.0] * 5 + [0.8] * 5) * 3, 0.2) is None  # told by the variation
    assert stability.levels([1.0] * 29 + [0.1], 0.2) is None  # one hiccup
    assert stability.levels([1.0] * 30, 0.2) is None
    assert stability.levels([1.0, 1.0, 0.3, 0.3], 0.2) is None  # too few


def test_a_speed_that_varies_much_without_phases_is_told_by_its_quarters() -> None:
    found = stability.levels([0.2, 1.8, 0.6, 1.4] * 8, 0.2)
    assert found is not None
    assert found.speeds == tuple((0.25, pytest.approx(speed)) for speed in (0.2, 0.6, 1.4, 1.8))
    assert found.phase_seconds == pytest.approx(0.2)  # it changes with every piece
    assert sum(share for share, _ in found.speeds) == 1


@pytest.mark.process
def test_the_loader_is_timed_with_and_without_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    rates = data_feed.measure(1, 1.0, budget_seconds=0.3, quick=True)
    assert set(rates.items_per_second_by_workers) == {0, 1}
    assert all(rate > 0 for rate in rates.items_per_second_by_workers.values())
    assert 0 < rates.item_cpu_seconds <= rates.item_seconds
    assert rates.item_bytes == 8 * (data_feed.SEQUENCE_LENGTH + 1)
    assert list(tmp_path.iterdir()) == []


def test_workers_tried_follow_the_cores() -> None:
    assert data_feed.worker_counts(0.5) == (0, 1)
    assert data_feed.worker_counts(2.0) == (0, 1, 2)
    assert data_feed.worker_counts(64.0) == (0, 1, 2, 4, 8)


def test_items_are_the_tokens_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "tokens.bin"
    values = torch.arange(3 * data_feed.SEQUENCE_LENGTH, dtype=torch.int64) + 60000
    file.write_bytes(b"".join((int(v) & 0xFFFF).to_bytes(2, "little") for v in values))
    items = data_feed.TokenItems(file, len(values))
    assert items[0].tolist() == (values[: data_feed.SEQUENCE_LENGTH + 1] & 0xFFFF).tolist()
    assert items[0].dtype == torch.int64


def test_storage_is_written_and_read_and_nothing_is_left(tmp_path: Path) -> None:
    rates = storage.measure(str(tmp_path), budget_seconds=0.2, quick=True)
    assert rates.read_bytes_per_second is not None
    assert rates.read_bytes_per_second > 0
    assert rates.write_bytes_per_second is not None
    assert rates.write_bytes_per_second > 0
    assert "MiB" in rates.read_detail
    assert rates.free_bytes > 0
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_only_read(tmp_path: Path) -> None:
    file = tmp_path / "data.bin"
    content = os.urandom(3 * 1024**2 + 17)
    file.write_bytes(content)
    rates = storage.measure(str(file), budget_seconds=0.2)
    assert rates.write_bytes_per_second is None
    assert "only read" in rates.write_detail
    assert rates.read_bytes_per_second is not None
    assert file.read_bytes() == content


def test_a_file_too_small_to_time_gives_a_reason(tmp_path: Path) -> None:
    file = tmp_path / "small"
    file.write_bytes(b"x" * 1000)
    rates = storage.measure(str(file))
    assert rates.read_bytes_per_second is None
    assert "1000 bytes" in rates.read_detail
    with pytest.raises(FileNotFoundError):
        storage.measure(str(tmp_path / "absent"))


def test_the_deepest_mount_names_the_file_system() -> None:
    mounts = "/dev/a / ext4 rw 0 0\ntmpfs /data tmpfs rw 0 0\nnas:/x /data/my\\040set nfs4 rw 0 0\n"
    assert storage.filesystem_of(Path("/home"), mounts) == "ext4"
    assert storage.filesystem_of(Path("/data/x"), mounts) == "tmpfs"
    assert storage.filesystem_of(Path("/database"), mounts) == "ext4"
    assert storage.filesystem_of(Path("/data/my set/a"), mounts) == "nfs4"


def test_what_needs_accelerators_says_so_on_a_cpu() -> None:
    with pytest.raises(UnsupportedHereError, match="no link to cross"):
        host_link.measure("cpu", 1)
    with pytest.raises(UnsupportedHereError, match="no pair"):
        pairs.measure((), 1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has accelerators")
def test_torch_without_accelerators_says_why() -> None:
    found = torch_devices.collect()
    assert (found.kind, found.devices) == ("cpu", ())
    assert torch.__version__ in found.reason


@pytest.mark.process
def test_two_ranks_sweep_message_sizes_and_agree(tmp_path: Path) -> None:
    with Crew(2) as crew:
        settings = {
            rank: {
                "device": "cpu",
                "threads": 1,
                "rank": rank,
                "world_size": 2,
                "store_file": str(tmp_path / "store"),
                "limit_seconds": GENEROUS,
                "budget_seconds": 0.5,
                "quick": True,
            }
            for rank in (0, 1)
        }
        answers = crew.ask("stratadvisor.probe.collectives:measure", settings, GENEROUS)
        assert [a.status for a in answers.values()] == ["ok", "ok"]
        first, second = (a.value for a in answers.values())
        assert isinstance(first, SweepTimes)
        assert first == second  # every decision was taken on the maximum over ranks
        assert (first.backend, first.world_size) == ("gloo", 2)
        assert [size for size, _ in first.points] == sorted(size for size, _ in first.points)
        assert all(seconds > 0 for _, seconds in first.points)
        alone = crew.ask("stratadvisor.probe.collectives:measure", {0: {**settings[0], "world_size": 1}}, GENEROUS)[0]
        assert (alone.status, alone.reason) == ("unsupported", "one rank has nobody to exchange with")
