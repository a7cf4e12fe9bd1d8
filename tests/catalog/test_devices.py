from __future__ import annotations

import pytest

from stratadvisor.catalog import devices
from stratadvisor.catalog.cuda_builds import lacking_kernels


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100-80GB-SXM"),
        ("A100-80GB", "A100-80GB-SXM"),
        ("NVIDIA A100 80GB PCIe", "A100-80GB-PCIe"),
        ("NVIDIA A100-PCIE-40GB", "A100-40GB-PCIe"),
        ("NVIDIA H100 80GB HBM3", "H100-80GB-SXM"),
        ("NVIDIA H100 PCIe", "H100-80GB-PCIe"),
        ("NVIDIA H100 NVL", "H100-94GB-NVL"),
        ("NVIDIA GH200 480GB", "GH200-96GB"),
        ("Tesla V100-SXM2-32GB", "V100-32GB-SXM"),
        ("Tesla T4", "T4"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("4090", "RTX-4090"),
        ("rtx 3090 24GB", "RTX-3090"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX-6000-Ada"),
        ("Quadro RTX 6000", "Quadro-RTX-6000"),
        ("AMD Instinct MI300X", "MI300X"),
    ],
)
def test_driver_and_user_spellings_find_their_entry(name: str, key: str) -> None:
    found = devices.lookup(name)
    assert found is not None
    assert found.key == key


@pytest.mark.parametrize(
    "name",
    [
        "",
        "A100",  # 40 or 80 GB
        "V100",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA A100-SXM4-80GB MIG 3g.40gb",
        "GRID A100-10C",
        "H100 96GB",
        "RTX 6000",  # Quadro, Ada or Blackwell
        "x" * 1000,
    ],
)
def test_ambiguous_and_lesser_parts_are_nobody(name: str) -> None:
    assert devices.lookup(name) is None


def test_an_ambiguous_name_is_answered_with_what_it_may_mean() -> None:
    assert set(devices.suggestions("A100")) == {
        "A100-40GB-PCIe",
        "A100-40GB-SXM",
        "A100-80GB-PCIe",
        "A100-80GB-SXM",
    }
    assert "RTX-4090" in devices.suggestions("RTX 4O90")


def test_dense_peaks_are_the_datasheets_and_not_the_sparse_ones() -> None:
    # A100 datasheet: 312 TFLOP/s dense, 624 sparse; H100 SXM: 989.4 dense, 1978.9 sparse; RTX 3090 whitepaper: 71 with
    # FP32 accumulation; V100: 125; MI300X data sheet: 1307.4
    expected = {"A100-80GB": 312e12, "H100": 989.4e12, "3090": 71e12, "V100-32GB": 125e12, "MI300X": 1307.4e12}
    for name, peak in expected.items():
        found = devices.lookup(name)
        assert found is not None
        assert found.peak_flops_per_second["fp16"] == peak


def test_every_entry_has_a_source_and_possible_figures() -> None:
    for spec in devices.specs().values():
        assert len(spec.source) > 10, spec.key
        assert 4 * 2**30 < spec.memory_bytes < 512 * 2**30, spec.key
        assert 1e11 < spec.memory_bandwidth_bytes_per_second < 2e13, spec.key
        assert "fp32" in spec.supports, spec.key
        assert 40 <= spec.power_watts <= 2000, spec.key
        peaks = spec.peak_flops_per_second
        if "fp8" in peaks:
            assert peaks["fp8"] == pytest.approx(2 * peaks["fp16"], rel=0.02), spec.key
        if "bf16" in spec.supports and spec.kind == "cuda":
            assert spec.compute_capability is not None, spec.key
            assert spec.compute_capability >= (8, 0), spec.key


def test_the_names_of_the_catalog_find_themselves() -> None:
    for spec in devices.specs().values():
        for name in (spec.key, *spec.names):
            assert devices.lookup(name) is spec
    assert set(devices.names()) >= set(devices.specs())


def test_a_memory_of_nothing_is_not_the_devices() -> None:
    assert devices.lookup("A10") is not None
    assert devices.lookup("A10-00G") is None
    assert devices.lookup("A10 0GB") is None


def test_nothing_suggests_nothing() -> None:
    assert devices.suggestions("") == devices.suggestions(" -_ ") == ()


@pytest.mark.parametrize(
    ("capability", "cuda", "said"),
    [
        # CUDA 13's release notes: compilation for Maxwell, Pascal and Volta is removed
        ((7, 0), "12.8", ""),
        ((7, 0), "13.0", "a build with CUDA 12"),
        ((7, 5), "13.0", ""),
        # Blackwell is compiled for from CUDA 12.8 on
        ((10, 0), "12.6", "12.8 or later"),
        ((10, 0), "12.8", ""),
        (None, "13.0", ""),
        ((7, 0), "", ""),
    ],
)
def test_a_build_of_torch_has_kernels_for_a_range_of_cards(
    capability: tuple[int, int] | None, cuda: str, said: str
) -> None:
    found = lacking_kernels(capability, cuda)
    assert said in found
    assert bool(found) is bool(said)
