"""``stratadvisor check`` at the command line: exit codes, JSON, 80 columns, bad input."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from stratadvisor.cli import run

RIGHT = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 4,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3},
}


@pytest.fixture
def file(tmp_path):
    def write(**changes):
        path = tmp_path / "ds_config.json"
        path.write_text(json.dumps({**RIGHT, **changes}, indent=2))
        return str(path)

    return write


def test_a_right_file_ends_with_zero(file, capsys):
    assert run(["check", file()]) == 0
    assert "nothing found" in capsys.readouterr().out


def test_errors_end_with_eleven_and_name_the_line(file, capsys):
    path = file(fp16={"enabled": True})
    assert run(["check", path]) == 11
    told = capsys.readouterr()
    assert f"{path}:6: error DS301 bf16.enabled\n" in told.out
    assert "1 error" in told.err


def test_warnings_count_only_when_strict(file, capsys):
    path = file(gradient_compression={})
    assert run(["check", path]) == 0
    assert run(["check", path, "--strict"]) == 11
    assert "DS113" in capsys.readouterr().out


def test_json_is_all_that_stands_on_standard_output(file, capsys):
    assert run(["check", file(fp16={"enabled": True}), "--json", "--world-size", "8"]) == 11
    answer = json.loads(capsys.readouterr().out)
    assert (answer["kind"], answer["framework_version"]) == ("deepspeed", "0.19.8")
    (finding,) = answer["findings"]
    assert (finding["code"], finding["severity"], finding["line"]) == ("DS301", "error", 6)


def test_memory_and_batch_follow_the_cluster(file, capsys):
    hardware = ["--gpus", "2x8xA100-80GB", "--model-size", "7B", "--seq-len", "2048"]
    assert run(["check", file(train_batch_size=64), *hardware]) == 0
    assert "MEM103" in capsys.readouterr().out
    assert run(["check", file(train_batch_size=32), *hardware]) == 11
    assert "= 64" in " ".join(capsys.readouterr().out.split())
    assert run(["check", file(), "--gpus", "1x1xRTX-3090", "--model-size", "7B"]) == 11
    assert "MEM101" in capsys.readouterr().out


def test_every_line_fits_eighty_columns(file, capsys):
    run(["check", file(elasticity={}, optimizer={"type": "OneBitAdam"}, my_long_key_without_meaning=1)])
    out = capsys.readouterr().out
    places = [line for line in out.splitlines() if ": error" in line or ": warning" in line or ": note" in line]
    assert all(len(line) <= 80 for line in out.splitlines() if line not in places and "/" not in line)
    assert len(places) >= 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--kind", "horovod"], "--kind"),
        (["--loader", "me"], "--loader"),
        (["--model-size", "7B"], "--gpus or --cluster"),
        (["--gpus", "8xNothing"], "Nothing"),
        (["--world-size", "0"], "world-size"),
    ],
)
def test_wrong_options_are_one_sentence(file, arguments, words, capsys):
    assert run(["check", file(), *arguments]) == 2
    told = capsys.readouterr().err
    assert words in told
    assert "Traceback" not in told


def test_control_characters_of_a_file_do_not_reach_the_terminal(file, capsys):
    assert run(["check", file(**{"\x1b[31mred\x07": 1})]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\x07" not in out


def test_no_heavy_library_is_imported(file):
    program = (
        "import sys; from stratadvisor.cli import run; code = run(sys.argv[1:]);"
        "heavy = {'torch', 'pandas', 'pynvml', 'psutil', 'numpy', 'deepspeed', 'transformers', 'lightning'};"
        "print('HEAVY', code, sorted({m.split('.')[0] for m in sys.modules} & heavy))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "check", file(), "--gpus", "8xA100-80GB", "--model-size", "7B"],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert "HEAVY 0 []" in done.stdout
