from __future__ import annotations

import pytest

from stratadvisor.catalog import devices, links


@pytest.mark.parametrize(
    ("name", "gigabits"),
    [("10GbE", 10), ("100GbE", 100), ("EDR", 100), ("HDR", 200), ("HDR100", 100), ("NDR", 400), ("XDR", 800)],
)
def test_network_rates_are_gigabits_and_stored_as_bytes(name: str, gigabits: float) -> None:
    found = links.lookup(name)
    assert found is not None
    assert found.rate_bytes_per_second == gigabits * 1e9 / 8
    assert found.kind == "network"


def test_spelling_is_free_of_case_and_blanks() -> None:
    assert links.lookup("InfiniBand HDR") is links.lookup("hdr200")
    assert links.lookup("pcie 4.0 x16") is links.lookup("PCIe4")
    assert links.lookup("NVLink9") is None
    assert links.lookup("x" * 500) is None


def test_nvlink_generations_agree_with_the_devices_that_have_them() -> None:
    for link, device in (("NVLink2", "V100-32GB"), ("NVLink3", "A100-80GB"), ("NVLink4", "H100"), ("NVLink5", "B200")):
        spec, card = links.lookup(link), devices.lookup(device)
        assert spec is not None
        assert card is not None
        assert spec.rate_bytes_per_second == card.link_bytes_per_second


def test_every_link_has_a_source_and_is_listed() -> None:
    assert all(spec.source and spec.latency_seconds > 0 for spec in links.specs().values())
    assert set(links.names("network")) < set(links.names())
