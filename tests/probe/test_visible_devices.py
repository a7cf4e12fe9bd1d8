from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratadvisor.probe.visible_devices import select

UUIDS = ["GPU-aaaa1111-01", "GPU-aaaa2222-02", "GPU-bbbb3333-03", "GPU-cccc4444-04"]


@pytest.mark.parametrize(
    ("value", "positions"),
    [
        (None, (0, 1, 2, 3)),
        ("0", (0,)),
        ("2,1", (2, 1)),
        (" 2 , 1 ", (2, 1)),
        ("0,2,-1,1", (0, 2)),  # the example of the CUDA programming guide
        ("0,7,1", (0,)),
        ("GPU-bbbb3333-03", (2,)),
        ("GPU-bbbb", (2,)),
        ("GPU-aaaa", ()),  # the beginning of two
        ("GPU-aaaa2,GPU-c", (1, 3)),
        ("GPU-dddd,0", ()),
        ("1gpu2,2ampere", (1, 2)),  # read like strtoul
        ("0,0", ()),
        ("", ()),
        ("NoDevFiles", ()),
        ("none", ()),
        ("void", ()),
        (",0", ()),
        ("0,", (0,)),
        ("99999999999999999999", ()),
        ("\u00b2", ()),
    ],
)
def test_the_list_is_read_as_the_driver_reads_it(value: str | None, positions: tuple[int, ...]) -> None:
    assert select(value, UUIDS).positions == positions


def test_slices_behind_the_cards_have_no_number() -> None:
    uuids = [*UUIDS[:1], "MIG-1111", "MIG-2222"]
    assert select("1", uuids, indexed=1).positions == ()
    assert select("MIG-2222", uuids, indexed=1).positions == (2,)
    assert select(None, uuids, indexed=1).positions == (0,)


def test_what_is_wrong_is_said_with_the_entry() -> None:
    assert "'7'" in select("0,7,1", UUIDS).complaint
    assert "empty" in select("", UUIDS).complaint
    assert "Slurm" in select("NoDevFiles", UUIDS).complaint
    assert "twice" in select("1,1", UUIDS).complaint
    assert select("1,0", UUIDS).complaint == ""
    assert "ROCR_VISIBLE_DEVICES" in select("x", UUIDS, variable="ROCR_VISIBLE_DEVICES").complaint


def test_numbers_are_marked_since_their_order_may_be_another() -> None:
    assert select("1", UUIDS).by_index
    assert not select("GPU-bbbb", UUIDS).by_index
    assert not select(None, UUIDS).by_index


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.text(alphabet="0123456789,-+ GPUMIabc\u00b2\x00", max_size=40), st.integers(0, 5))
def test_any_text_names_each_device_at_most_once(value: str, count: int) -> None:
    chosen = select(value, UUIDS[:count]).positions
    assert len(set(chosen)) == len(chosen)
    assert set(chosen) <= set(range(count))


def test_the_reading_agrees_with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = pytest.importorskip("torch.cuda")
    for value in ("0", "2,1", "0,2,-1,1", "1gpu2,2ampere", "0,0", "3,1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
        assert list(select(value, UUIDS).positions) == cuda._parse_visible_devices()
