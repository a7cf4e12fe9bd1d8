"""Causes of failure, from the messages that torch, gloo, NCCL, DeepSpeed and the kernel really print."""

from __future__ import annotations

import pytest
from plan_for_tests import small_plan

from stratadvisor.schema.validation import FailureCause
from stratadvisor.validate.causes import TYPED
from stratadvisor.validate.classify import classify
from stratadvisor.validate.launch import Ended

TORCHRUN = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "


def ended(how="exit", code=1, peak=0, kills=0):
    return Ended(how=how, exit_code=code, wall_seconds=12.0, peak_tree_bytes=peak, cgroup_oom_kills=kills)


@pytest.mark.parametrize(
    ("log", "kind", "words"),
    [
        (
            "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has\n"
            "[rank0]: torch.distributed.DistBackendError: NCCL error: remote process exited\n",
            "device_out_of_memory",
            "micro-batch",
        ),
        ("RuntimeError: CUDA error: out of memory\n", "device_out_of_memory", "micro-batch"),
        (
            "[rank0]: RuntimeError: [enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: "
            "can't allocate memory: you tried to allocate 40000000000 bytes. Error code 12 (Cannot allocate memory)\n",
            "host_out_of_memory",
            "",
        ),
        ("MemoryError\n", "host_out_of_memory", ""),
        (
            "RuntimeError: DataLoader worker (pid 42) is killed by signal: Bus error. It is possible that dataloader's "
            "workers are out of shared memory. Please try to raise your shared memory limit.\n",
            "shared_memory_exhausted",
            "shm",
        ),
        (
            "RuntimeError: unable to open shared memory object </torch_12_34> in read-write mode: No space left (28)\n",
            "shared_memory_exhausted",
            "shm",
        ),
        (
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
            "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use\n",
            "port_in_use",
            "MASTER_PORT",
        ),
        (
            "[rank0]: RuntimeError: [enforce fail at ../third_party/gloo/gloo/transport/tcp/device.cc:83] "
            "ifa != nullptr. Unable to find interface for: eth9\n",
            "network_interface",
            "GLOO_SOCKET_IFNAME",
        ),
        (
            "node1:12:12 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found\n",
            "network_interface",
            "IFNAME",
        ),
        ("ModuleNotFoundError: No module named 'deepspeed.ops'\n", "missing_package", "pip install deepspeed"),
        ("RuntimeError: Ninja is required to load C++ extensions\n", "missing_compiler", "ninja"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'g++'\n", "missing_compiler", "g++"),
        ("deepspeed.runtime.config_utils.DeepSpeedConfigError: bad key\n", "bad_config", "recommend --force"),
        ("AssertionError: OneBitAdam is not a supported DeepSpeed Optimizer\n", "bad_config", ""),
        ("OSError: [Errno 28] No space left on device\n", "disk_full", "STRATADVISOR_RUN_DIR"),
        (
            "RuntimeError: The NVIDIA driver on your system is too old; CUDA driver version is insufficient for CUDA "
            "runtime version\n",
            "version_mismatch",
            "versions",
        ),
        (
            "[rank0]:[E1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE)\n",
            "hang",
            "MASTER_ADDR",
        ),
    ],
)
def test_a_known_message_gives_its_cause_and_fix(log, kind, words):
    cause = classify(ended(), log + TORCHRUN + "\n", small_plan())
    assert cause.kind == kind
    assert words in cause.fix
    assert cause.evidence


def test_the_rank_that_raised_is_named():
    cause = classify(ended(), "[rank3]: torch.OutOfMemoryError: CUDA out of memory.\n", small_plan())
    assert cause.rank == 3


def test_what_the_program_itself_says_goes_before_the_signal_that_ended_the_others():
    log = (
        "rank 1: error: /b/train_config.json: model has the unknown key 'colour'\n"
        "W1201 torch/distributed/elastic: Sending process 10399 closing signal SIGTERM\n"
        "  exitcode  : -15 (pid: 7)\n"
    )
    cause = classify(ended(), log, small_plan())
    assert (cause.kind, cause.rank) == ("bad_config", 1)
    assert "unknown key 'colour'" in cause.summary
    lost = (
        "rank 0: error: another process of this run ended or cannot be reached (x); the one that ended first says why\n"
    )
    assert classify(ended(code=-15), lost, small_plan()).kind == "rank_died"


def test_the_word_error_alone_decides_nothing():
    log = "INFO error rate 0.0, no errors so far\nerror_callback registered\nall fine: error=None\n"
    cause = classify(ended(code=3), log, small_plan())
    assert cause.kind == "unknown"
    assert "exit code 3" in cause.summary


@pytest.mark.parametrize(
    ("how", "code", "kills", "peak", "kind"),
    [
        ("exit", -9, 1, 0, "host_out_of_memory"),
        ("exit", 137, 0, int(0.95 * 2**34), "host_out_of_memory"),
        ("exit", 137, 0, 2**30, "rank_died"),
        ("exit", 135, 0, 0, "shared_memory_exhausted"),
        ("exit", 139, 0, 0, "rank_died"),
        ("exit", 127, 0, 0, "missing_package"),
        ("stalled", -9, 0, 0, "hang"),
        ("time_limit", -15, 0, 0, "hang"),
        ("interrupted", -15, 0, 0, "interrupted"),
        ("exit", 1, 0, 0, "unknown"),
    ],
)
def test_signals_and_counters_tell_deaths_apart(how, code, kills, peak, kind):
    cause = classify(ended(how, code, peak, kills), "", small_plan(), memory_limit_bytes=2**34)
    assert cause.kind == kind


def test_a_rank_killed_under_torchrun_is_seen_in_its_report():
    log = "  rank : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 7)\n  traceback : Signal 9 (SIGKILL) received by PID 7\n"
    cause = classify(ended(code=1, kills=2), log, small_plan())
    assert (cause.kind, cause.rank) == ("host_out_of_memory", 1)


def test_a_hang_shows_where_the_ranks_stood():
    log = 'Fatal Python error: Aborted\n  File "train.py", line 9 in main\n  File "loop.py", line 70 in all_reduce\n'
    cause = classify(ended("stalled"), log, small_plan())
    assert any("all_reduce" in line for line in cause.evidence)


def test_every_kind_of_the_table_is_in_the_schema():
    kinds = set(FailureCause.model_fields["kind"].annotation.__args__)
    assert {t.kind for t in TYPED} <= kinds
