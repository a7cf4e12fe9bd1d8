import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratadvisor.probe.crew import Crew, member_environment

pytestmark = pytest.mark.process
HELPERS = str(Path(__file__).resolve().parent.parent)
GENEROUS = 300.0


@pytest.fixture(autouse=True)
def targets_in_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", HELPERS)


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def await_end(pids: list[int]) -> list[int]:
    end = time.monotonic() + GENEROUS
    while time.monotonic() < end and any(running(pid) for pid in pids):
        time.sleep(0.1)
    return [pid for pid in pids if running(pid)]


def marked(mark: str) -> list[int]:
    """Every process whose environment carries the mark."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.fixture(scope="module")
def shared_crew() -> Iterator[Crew]:
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = HELPERS
    with Crew(2) as crew:
        crew.ask("probe_targets:echo", {0: {}, 1: {}}, GENEROUS)
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
        yield crew


def test_each_member_answers_its_own_settings_from_its_own_process(shared_crew: Crew) -> None:
    answers = shared_crew.ask("probe_targets:echo", {0: {"a": 1}, 1: {"a": 2}}, GENEROUS)
    assert [answers[0].value, answers[1].value] == [{"a": 1}, {"a": 2}]
    pids = {a.value for a in shared_crew.ask("probe_targets:process_id", {0: {}, 1: {}}, GENEROUS).values()}
    assert len(pids | {os.getpid()}) == 3


@pytest.mark.parametrize(
    ("target", "status", "reason"),
    [
        ("probe_targets:no_memory", "failed", "out of memory"),
        ("probe_targets:denied", "denied", "/dev/strange"),
        ("probe_targets:broken", "failed", "ValueError: first line second line"),
        ("probe_targets:unsendable", "failed", "cannot be sent"),
        ("probe_targets:absent", "failed", "absent"),
        ("no_such_module:collect", "failed", "no_such_module"),
        ("stratadvisor.probe.pairs:measure", "failed", "TypeError"),
    ],
)
def test_an_exception_becomes_a_status_with_a_reason_in_one_line(
    shared_crew: Crew, target: str, status: str, reason: str
) -> None:
    before = shared_crew.members[0].pid
    answer = shared_crew.ask(target, {0: {}}, GENEROUS)[0]
    assert answer.status == status
    assert reason in answer.reason
    assert "\n" not in answer.reason
    assert shared_crew.members[0].pid == before  # the process lives on


def test_a_member_that_hangs_is_ended_and_the_other_still_answers(shared_crew: Crew) -> None:
    shared_crew.ask("probe_targets:echo", {0: {}, 1: {}}, GENEROUS)
    hung = shared_crew.members[0].pid
    assert hung is not None
    answers = shared_crew.ask("probe_targets:hang_if", {0: {"hanging": True}, 1: {"hanging": False}}, 10.0)
    assert answers[0].status == "timed_out"
    assert "10 s" in answers[0].reason
    assert (answers[1].status, answers[1].value) == ("ok", "answered")
    assert await_end([hung]) == []
    assert shared_crew.members[0].pid is None


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("probe_targets:crash", "SIGSEGV"),
        ("probe_targets:killed", "lack of memory"),
        ("probe_targets:leave", "code 7: cannot open libstrange.so"),
    ],
)
def test_a_process_that_dies_is_told_from_its_end_and_started_again(target: str, reason: str) -> None:
    with Crew(1) as crew:
        answer = crew.ask(target, {0: {}}, GENEROUS)[0]
        assert answer.status == "failed"
        assert answer.lost
        assert reason in answer.reason
        assert crew.ask("probe_targets:echo", {0: {"again": True}}, GENEROUS)[0].value == {"again": True}


def test_closing_ends_members_and_what_they_started() -> None:
    crew = Crew(1)
    grandchild = crew.ask("probe_targets:child_that_sleeps", {0: {}}, GENEROUS)[0].value
    member = crew.members[0].pid
    assert member is not None
    assert running(grandchild)
    crew.close()
    assert await_end([member, grandchild]) == []


def test_members_end_when_the_parent_is_killed_outright() -> None:
    program = (
        "from stratadvisor.probe.crew import Crew\n"
        "crew = Crew(1)\n"
        f"print(crew.ask('probe_targets:process_id', {{0: {{}}}}, {GENEROUS})[0].value, flush=True)\n"
        f"crew.ask('probe_targets:hang', {{0: {{}}}}, {GENEROUS})\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    member = int(parent.stdout.readline())
    assert running(member)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert await_end([member]) == []


def test_an_interrupt_ends_the_whole_probe_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mark = f"probe-test-{uuid.uuid4().hex}"
    monkeypatch.setenv("STRATADVISOR_TEST_MARK", mark)
    program = (
        "import signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background job may have inherited SIG_IGN
        "from stratadvisor.probe.run import probe_node\n"
        "show = lambda title, share: print(title, flush=True)\n"
        "probe_node(progress=show, only=('compute',), time_limit_seconds=300)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    assert parent.stdout is not None
    for line in parent.stdout:
        if line.strip() == "matrix products":
            break
    assert parent.pid in marked(mark)
    parent.send_signal(signal.SIGINT)
    _, errors = parent.communicate(timeout=GENEROUS)
    assert parent.returncode != 0
    assert "KeyboardInterrupt" in errors
    assert await_end(marked(mark)) == []


def test_a_file_in_the_working_directory_does_not_replace_a_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "tempfile.py").write_text("raise RuntimeError('the wrong tempfile')\n")
    monkeypatch.chdir(tmp_path)
    with Crew(1) as crew:
        assert crew.ask("probe_targets:echo", {0: {}}, GENEROUS)[0].status == "ok"


def test_members_see_no_launcher_and_use_the_threads_they_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    environment = member_environment(3)
    assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"} & set(environment)
    assert environment["OMP_NUM_THREADS"] == "3"


def test_losses_are_counted_by_member() -> None:
    with Crew(2) as crew:
        crew.ask("probe_targets:killed", {1: {}}, GENEROUS)
        crew.ask("probe_targets:broken", {0: {}, 1: {}}, GENEROUS)
        crew.ask("probe_targets:killed", {1: {}}, GENEROUS)
        assert [member.losses for member in crew.members] == [0, 2]


def test_a_process_with_a_lasting_device_error_is_started_anew() -> None:
    with Crew(1) as crew:
        first = crew.ask("probe_targets:process_id", {0: {}}, GENEROUS)[0].value
        answer = crew.ask("probe_targets:lasting", {0: {}}, GENEROUS)[0]
        assert answer.status == "failed"
        assert "CUDA error" in answer.reason
        assert crew.ask("probe_targets:process_id", {0: {}}, GENEROUS)[0].value != first
        assert crew.members[0].losses == 0


def test_ranks_that_wait_for_each_other_do_not_wait_for_one_that_is_lost() -> None:
    with Crew(2) as crew:
        settings = {0: {"dying": False}, 1: {"dying": True}}
        answers = crew.ask("probe_targets:hang_or_die", settings, 10 * GENEROUS, together=True)
        assert "SIGKILL" in answers[1].reason
        assert answers[0].status == "failed"
        assert "waiting for a rank that was lost" in answers[0].reason
        assert [member.losses for member in crew.members] == [0, 1]


def test_a_crash_comes_with_the_last_words_of_the_library_that_crashed() -> None:
    with Crew(1) as crew:
        answer = crew.ask("probe_targets:abort", {0: {}}, GENEROUS)[0]
    assert answer.reason == "the measuring process was ended by SIGABRT: what():  std::bad_alloc"


def test_a_member_starts_where_no_file_can_be_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if not hasattr(os, "memfd_create"):
        pytest.skip("files in memory are Linux's")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(OSError, match="gone"):
        tempfile.TemporaryFile()  # noqa: SIM115 - it cannot be opened
    with Crew(1) as crew:
        answer = crew.ask("probe_targets:leave", {0: {}}, GENEROUS)[0]
    assert "cannot open libstrange.so" in answer.reason


def test_of_a_worker_s_traceback_the_cause_is_told() -> None:
    with Crew(1) as crew:
        answer = crew.ask("probe_targets:worker_raised", {0: {}}, GENEROUS)[0]
    assert answer.reason == "RuntimeError: OSError: [Errno 28] No space left on device"


def test_a_process_that_cannot_be_started_is_an_answer_and_the_others_go_on() -> None:
    """Under a limit of open files that is enough for one member, in a process of its own."""
    code = (
        "import resource, sys\n"
        "from stratadvisor.probe.crew import Crew\n"
        "with Crew(40) as crew:\n"
        "    crew.ask('probe_targets:echo', {0: {}}, 300)\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))\n"
        "    answers = crew.ask('probe_targets:echo', {m: {} for m in range(40)}, 300)\n"
        "    print(answers[0].status, answers[39].status, answers[39].reason)\n"
        "    again = crew.ask('probe_targets:echo', {0: {}}, 300)[0]\n"
        "    print(again.status)\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([HELPERS, *sys.path])}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=500)
    told, again = done.stdout.splitlines()
    assert told == "ok failed no measuring process can be started: Too many open files", done.stderr
    assert again == "ok"
