"""Causes of failure, from the messages that torch, gloo, NCCL, DeepSpeed and the kernel really print."""

from __future__ import annotations

import pytest
from plan_for_tests import small_plan

from stratadvisor.schema.validation import FailureCause
from stratadvisor.validate.causes import TYPED
from stratadvisor.validate.classify import classify
from stratadvisor.validate.launch import Ended

TORCHRUN = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "


def ended(how="exit", code=1, peak=0, kills=0, halted=()):
    return Ended(
        how=how, exit_code=code, wall_seconds=12.0, peak_tree_bytes=peak, cgroup_oom_kills=kills, halted=halted
    )


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
        # as c10d's writer, `cp` and bash say it, without an exception of Python
        ("launch.sh: line 3: echo: write error: No space left on device\n", "disk_full", "STRATADVISOR_RUN_DIR"),
        ("OSError: [Errno 24] Too many open files: '/proc/meminfo'\n", "resource_limit", "ulimit -n"),
        ("[rank0]: OSError: [Errno 27] File too large\n", "resource_limit", "-f"),
        ("[rank0]: OSError: [Errno 122] Disk quota exceeded: 'x'\n", "disk_full", "STRATADVISOR_RUN_DIR"),
        ("/opt/venv/bin/python: No module named torch\n", "missing_package", "pip install torch"),
        (
            "/opt/venv/bin/python3: Error while finding module specification for 'torch.distributed.run' "
            "(ModuleNotFoundError: No module named 'torch.distributed')\n",
            "missing_package",
            "pip install torch",
        ),
        ("AttributeError: module 'torch.version' has no attribute 'hip'\n", "version_mismatch", "versions"),
        ("RuntimeError: can't start new thread\n", "resource_limit", "-u"),
        ("BlockingIOError: [Errno 11] Resource temporarily unavailable\n", "resource_limit", "pids limit"),
        ("launch.sh: fork: retry: Resource temporarily unavailable\n", "resource_limit", "pids limit"),
        (
            "OpenBLAS blas_thread_init: pthread_create failed for thread 3 of 8: Resource temporarily unavailable\n",
            "resource_limit",
            "pids limit",
        ),
        (
            "ImportError: libtorch_cpu.so: failed to map segment from shared object: Cannot allocate memory\n",
            "host_out_of_memory",
            "",
        ),
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
    assert classify(ended(code=139), lost, small_plan()).kind == "rank_died"
    # a launcher that was killed itself is the cause, whatever its ranks said while they were ended
    for code in (-9, 137, 143):
        assert classify(ended(code=code), lost, small_plan()).kind == "launcher_died"


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
        ("exit", 137, 0, 2**30, "launcher_died"),
        ("exit", 143, 0, 2**30, "launcher_died"),
        ("exit", -9, 0, 2**30, "launcher_died"),
        ("exit", -11, 0, 0, "launcher_died"),
        ("exit", -15, 0, 0, "launcher_died"),
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


def test_what_deepspeed_s_launcher_says_of_a_killed_rank_is_no_death_of_the_launcher():
    log = "[2026-01-01 00:00:00,000] [ERROR] [launch.py:325:sigkill_handler] ['python3'] exits with return code = -9\n"
    cause = classify(ended(code=-9), log, small_plan())
    assert cause.kind == "rank_died"
    assert "SIGKILL" in cause.summary


def test_a_rank_that_died_is_named_with_its_signal():
    log = "  rank : 1 (local_rank: 1)\n  exitcode  : -11 (pid: 7)\n"
    cause = classify(ended(code=1), log, small_plan())
    assert (cause.kind, cause.rank) == ("rank_died", 1)
    assert cause.summary == "rank 1 died of signal SIGSEGV"


def torchrun_report(root: tuple[int, int], *others: tuple[int, int]) -> str:
    """What torchrun prints of ranks and their exit codes; the root cause is the one that it saw end first."""

    def block(at: int, rank: int, code: int) -> str:
        return (
            f"[{at}]:\n  time      : 2026\n  rank      : {rank} (local_rank: {rank})\n  exitcode  : {code} (pid: 7)\n"
        )

    report = "Failures:\n" + "".join(block(i + 1, *other) for i, other in enumerate(others)) + "-----\n"
    return report + "Root Cause (first observed failure):\n" + block(0, *root)


@pytest.mark.parametrize(
    ("root", "other", "rank", "name"),
    [
        ((1, -9), (0, -15), 1, "SIGKILL"),  # torchrun ends the others
        ((0, -9), (1, -15), 0, "SIGKILL"),
        ((0, -6), (1, -11), 1, "SIGSEGV"),  # the survivor's library aborts on the lost connection, and is seen first
        ((0, 1), (1, -11), 1, "SIGSEGV"),
        ((1, -6), (0, -15), 1, "SIGABRT"),
        ((1, -15), (0, 1), 1, "SIGTERM"),
    ],
)
def test_of_several_ranks_the_one_that_died_first_is_named(root, other, rank, name):
    cause = classify(ended(code=1), torchrun_report(root, other), small_plan())
    assert (cause.kind, cause.rank) == ("rank_died", rank)
    assert cause.summary.startswith(f"rank {rank} ")
    assert name in cause.summary


def test_a_rank_that_ended_by_itself_is_the_cause_and_not_the_one_that_torchrun_then_ended():
    cause = classify(ended(code=1), torchrun_report((0, 1), (1, -15)), small_plan())
    assert (cause.kind, cause.rank) == ("unknown", 0)


def test_an_attribute_that_the_user_s_own_module_lacks_is_no_mismatch_of_versions():
    log = "AttributeError: module 'my_model' has no attribute 'build'\n"
    assert classify(ended(code=1), log, small_plan()).kind == "unknown"


@pytest.mark.parametrize("how", ["stalled", "time_limit"])
def test_a_rank_that_the_system_does_not_let_run_explains_a_hang(how):
    cause = classify(ended(how, halted=("rank 1 is stopped (SIGSTOP)",)), "", small_plan())
    assert cause.kind == "hang"
    assert "rank 1 is stopped" in cause.summary
    assert "let that process run again" in cause.fix


def test_limits_in_prose_are_no_cause():
    log = "WARNING: Too many open files may slow this down\nthread says Resource temporarily unavailable, will retry\n"
    assert classify(ended(code=3), log, small_plan()).kind == "unknown"


def test_a_hang_shows_where_the_ranks_stood():
    log = 'Fatal Python error: Aborted\n  File "train.py", line 9 in main\n  File "loop.py", line 70 in all_reduce\n'
    cause = classify(ended("stalled"), log, small_plan())
    assert any("all_reduce" in line for line in cause.evidence)


def test_every_kind_of_the_table_is_in_the_schema():
    kinds = set(FailureCause.model_fields["kind"].annotation.__args__)
    assert {t.kind for t in TYPED} <= kinds
