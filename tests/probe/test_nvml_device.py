import pytest

from stratadvisor.probe.nvml_device import catalogued
from stratadvisor.schema.base import reported, unknown


@pytest.mark.parametrize(
    ("name", "mebibytes", "key"),
    [
        ("NVIDIA GeForce RTX 4060 Ti", 8188, "RTX-4060-Ti-8GB"),
        ("NVIDIA GeForce RTX 4060 Ti", 16380, "RTX-4060-Ti-16GB"),
        ("NVIDIA A10", 23028, "A10"),
        ("GRID A100D-40C", 40960, None),  # a slice of a card is not a card of that size
    ],
)
def test_memory_tells_apart_what_the_driver_calls_alike(name: str, mebibytes: int, key: str | None) -> None:
    spec = catalogued(name, reported(mebibytes * 2**20))
    assert (None if spec is None else spec.key) == key


def test_a_name_of_two_cards_without_its_memory_is_nobody() -> None:
    assert catalogued("NVIDIA GeForce RTX 4060 Ti", unknown("not read")) is None
