"""Random numbers that belong to a step: a resumed run draws what the uninterrupted one does, each rank its own."""

from __future__ import annotations

import hashlib
import random
import sys

import torch


def seed_step(seed: int, replica: int, step: int) -> None:
    """Seed the generators of torch (all devices), Python and, where it is loaded, NumPy for one step of one replica.

    Dropout and augmentation then depend on (seed, replica, step) alone, so no generator's state needs to be saved.
    """
    digest = hashlib.sha256(f"{seed}/{replica}/{step}".encode()).digest()
    value = int.from_bytes(digest[:8], "little") >> 1  # torch takes 63 bits
    torch.manual_seed(value)
    random.seed(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(value & 0xFFFFFFFF)
