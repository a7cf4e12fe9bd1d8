"""The first exchange of the ranks, and kernels for a device: what ends a run before it trains."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from stratadvisor.runtime.config import TrainingError
from stratadvisor.runtime.distributed import check_exchange


def test_sums_that_are_not_what_the_ranks_sent_end_the_run() -> None:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        check_exchange(torch.device("cpu"), 0, 1)
        # one rank sends 1; of two the sum would be 1 + 2: what a broken copy delivers is short of it as well
        with pytest.raises(TrainingError, match=r"4096 wrong sums of 4096 .*\(1 instead of 3\).*NCCL_P2P_DISABLE"):
            check_exchange(torch.device("cpu"), 0, 2)
    finally:
        dist.destroy_process_group()
