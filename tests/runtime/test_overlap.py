from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratadvisor.runtime.config import ConfigError
from stratadvisor.runtime.overlap import schedule


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=20), st.integers(1, 50), st.data())
@settings(deadline=None, derandomize=True)
def test_every_parameter_is_exchanged_once_between_meetings(
    sizes: list[int], interval: int, data: st.DataObject
) -> None:
    pieces = data.draw(st.integers(1, min(interval, len(sizes))))
    delay = data.draw(st.integers(0, interval // pieces - 1))
    found = schedule(sizes, interval=interval, pieces=pieces, delay=delay)
    assert len(found) == pieces
    assert [index for piece in found for index in range(piece.first, piece.last)] == list(range(len(sizes)))
    assert [element for piece in found for element in (piece.start, piece.stop)][1:-1:2] == [
        piece.start for piece in found[1:]
    ]
    assert all(piece.stop - piece.start == sum(sizes[piece.first : piece.last]) for piece in found)
    assert found[-1].apply_step == interval
    assert all(piece.apply_step - piece.launch_step == delay for piece in found)
    # never two under way: each is launched after the one before it was applied
    assert all(later.launch_step > earlier.apply_step - 1 for earlier, later in itertools.pairwise(found))


def test_pieces_are_of_about_equal_size() -> None:
    found = schedule([10] * 12, interval=30, pieces=3, delay=2)
    assert [(piece.first, piece.last) for piece in found] == [(0, 4), (4, 8), (8, 12)]
    assert [(piece.launch_step, piece.apply_step) for piece in found] == [(8, 10), (18, 20), (28, 30)]


@pytest.mark.parametrize(
    ("interval", "pieces", "delay", "text"),
    [
        (4, 1, 4, "delay_steps is 4: it must be at least 0 and less than the 4 steps"),
        (9, 3, 3, "less than the 3 steps"),
        (4, 5, 0, "fragments is 5, but there are 4 steps"),
        (4, 1, -1, "at least 0"),
    ],
)
def test_what_does_not_fit_between_two_meetings_is_refused(interval: int, pieces: int, delay: int, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        schedule([5, 5, 5, 5, 5, 5], interval=interval, pieces=pieces, delay=delay)
