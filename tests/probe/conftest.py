from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from cgroup_room import Room, make_room, remove_room


@pytest.fixture
def cgroup_room() -> Iterator[Callable[[str], Room]]:
    rooms: list[Room] = []

    def make(controller: str) -> Room:
        room = make_room(controller)
        if room is None:
            pytest.skip(f"this machine does not let us make a control group for {controller}")
        rooms.append(room)
        return room

    yield make
    for room in rooms:
        remove_room(room)
