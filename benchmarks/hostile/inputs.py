"""The inputs: the lists of tests/hostile, the corpus of fuzz/, and files made by damaging good ones."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

import hostile_inputs
import plan_examples

from benchmarks.hostile.trial import Trial
from stratadvisor import store
from tests.hostile import test_bombs, test_launch, test_profiles, test_rules, test_runs_csv, test_templates

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT / "fuzz" / "corpus"
SIZE = ("--model-size", "1B")
GPUS = ("--gpus", "2xA100-80GB")
NAMES = hostile_inputs.NAMES
HOSTILE = "\x1b]0;t\x07\x9b2J\u202e\u200b\r<script>{{ x }}$(touch pwned-by-a-name)"


@cache
def plan_text() -> str:
    return store.dump(plan_examples.examples()["ddp_cpu"])


CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 256,
}
TOML = """name = "c"
inter_node = "100Gb/s"
[[node]]
count = 2
hostnames = ["a", "b"]
gpus = "8xA100-80GB"
"""
CSV_ROWS = ",".join(test_runs_csv.GOOD) + "\n" + ",".join(test_runs_csv.GOOD.values()) + "\n"
DEEPSPEED = '{"train_batch_size": 8, "zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}'
ACCELERATE = "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\nmixed_precision: bf16\n"
STEP = {"event": "step", "step": 1, "loss": 2.0, "tokens": 8, "step_seconds": 0.1, "peak_device_bytes": 100}
METRICS = json.dumps({"event": "start", "world_size": 2}) + "\n" + json.dumps(STEP) + "\n"


def put(name: str, content: str | bytes) -> Callable[[Path], None]:
    """Return a preparation that writes one file."""

    def prepare(place: Path) -> None:
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))

    return prepare


def bundle(place: Path) -> Path:
    """Write a good bundle."""
    pipeline_profile = plan_examples.profile()
    from stratadvisor.emit.bundle import render_bundle, write_bundle

    write_bundle(render_bundle(plan_examples.examples()["ddp_cpu"], pipeline_profile), place / "bundle")
    return place / "bundle"


READERS: dict[str, tuple[str, tuple[object, ...], Callable[[], str]]] = {
    "profile": ("c.json", ("recommend", *SIZE, "--cluster", "c.json", "--no-write"), lambda: test_profiles.DOCUMENT),
    "cluster file": ("c.toml", ("recommend", *SIZE, "--cluster", "c.toml", "--no-write"), lambda: TOML),
    "config.json": (
        "config.json",
        ("recommend", "--model", "config.json", *GPUS, "--no-write"),
        lambda: json.dumps(CONFIG),
    ),
    "plan": ("plan.json", ("explain", "plan.json"), plan_text),
    "CSV of runs": ("runs.csv", ("backtest", "runs.csv"), lambda: CSV_ROWS),
    "DeepSpeed file": ("ds.json", ("check", "ds.json", "--kind", "deepspeed", "--world-size", "8"), lambda: DEEPSPEED),
    "Accelerate file": ("a.yaml", ("check", "a.yaml"), lambda: ACCELERATE),
    "rule file": (
        "o/rules/50_mine.toml",
        ("rules", "list", "--overlay", "o"),
        lambda: test_rules.RULE.format(setting='environment.MINE = "x"'),
    ),
}
"""Kind of file: its name, the command that reads it, a good one."""


def reading(kind: str, what: str, content: str | bytes) -> Trial:
    """Return a trial of one content."""
    name, command, _ = READERS[kind]
    return Trial(kind, what, command, prepare=put(name, content))


def damaged() -> Iterator[Trial]:
    """Every kind of file: cut off, in other encodings, with marks, nested, repeated, of no or one byte."""
    for kind, (_, _, good) in READERS.items():
        text = good()
        for share in (0.1, 0.4, 0.8, 0.98):
            yield reading(kind, f"cut off at {share:.0%}", text[: int(len(text) * share)])
        for encoding in ("utf-16", "utf-32", "utf-8-sig", "cp037"):
            yield reading(kind, f"in {encoding}", text.encode(encoding, "replace"))
        yield reading(
            kind, "a byte that is no UTF-8", text.replace("a", "\udcff", 1).encode("utf-8", "surrogateescape")
        )
        yield reading(kind, "NULs", text.replace(" ", "\0"))
        yield reading(kind, "empty", "")
        yield reading(kind, "one byte", "{")
        yield reading(kind, "twice", text * 2)
        yield reading(kind, "ten megabytes of blanks", " " * 10_000_000 + text)
        yield reading(kind, "ten megabytes of one letter", "x" * 10_000_000)
        yield reading(kind, "a hundred thousand brackets", "[" * 100_000)
        yield reading(kind, "escape codes", text.replace("a", HOSTILE.split("<", maxsplit=1)[0], 1))


def files_that_are_none() -> Iterator[Trial]:
    """Directories, loops of links, pipes, devices, missing ones, and names that are too long, in every file's place."""

    def folder(path: Path) -> None:
        path.mkdir()

    def loop(path: Path) -> None:
        path.symlink_to(path.name)

    def pipe(path: Path) -> None:
        os.mkfifo(path)

    def device(path: Path) -> None:
        path.symlink_to("/dev/zero")

    def dangling(path: Path) -> None:
        path.symlink_to("/no/such/file")

    def nothing(_: Path) -> None:
        return None

    for kind, (name, command, _) in READERS.items():
        for what, make in {
            "a folder": folder,
            "a loop of links": loop,
            "a pipe": pipe,
            "a device": device,
            "a link to nothing": dangling,
            "missing": nothing,
        }.items():

            def prepare(place: Path, make: Callable[[Path], None] = make, name: str = name) -> None:
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                make(place / name)

            yield Trial("no files", f"{kind}: {what}", command, prepare=prepare)
        for what, long in (("a name too long", "x" * 5000 + ".json"), ("a NUL in the name", "a\0.json")):
            words = tuple(long if word == name else word for word in command)
            if words != command:
                yield Trial("no files", f"{kind}: {what}", words)


def bombs() -> Iterator[Trial]:
    """What fills memory or stack."""
    for name, text in test_bombs.BOMBS.items():
        yield reading("profile", name, text)
    deep = "[" * 200_000 + "]" * 200_000
    for kind in ("plan", "config.json", "DeepSpeed file"):
        yield reading(kind, "deep lists", '{"a": ' + deep + "}")
        yield reading(kind, "deep objects", '{"a": ' * 100_000 + "0" + "}" * 100_000)
        yield reading(kind, "a number of a million digits", '{"hidden_size": ' + "9" * 1_000_000 + "}")
        yield reading(kind, "half a million keys", "{" + ",".join(f'"k{i}": 0' for i in range(500_000)) + "}")
    for kind in ("cluster file", "rule file"):
        for text in ("x = " + "[" * 100_000, "[" + "a." * 100_000 + "b]", "x = " + "9" * 100_000, "x = nan\n"):
            yield reading(kind, f"bomb {text[:6]!r}", text)
    lines = ["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}, *a{i - 1}, *a{i - 1}]" for i in range(1, 16)]
    yield reading("Accelerate file", "a billion laughs", "\n".join(lines))
    merges = ["a0: &a0 {k: v}"] + [f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}, *a{i - 1}]}}" for i in range(1, 25)]
    yield reading("Accelerate file", "merge keys", "\n".join(merges))
    yield reading(
        "Accelerate file", "a tag that calls", "x: !!python/object/apply:os.system ['touch pwned-by-a-name']\n"
    )
    yield reading("CSV of runs", "a hundred thousand columns", ",".join(["x"] * 100_000))
    yield reading("CSV of runs", "a cell of ten megabytes", CSV_ROWS + '"' + "x" * 10_000_000 + '"')


NUMBERS = [*test_profiles.NUMBERS, float("nan"), float("inf"), float("-inf"), "1e999", "NaN", [], {}, None]


def numbers() -> Iterator[Trial]:
    """Odd values in odd places of documents of JSON."""
    order = random.Random(7)
    for kind, text, amount in (
        ("profile", test_profiles.DOCUMENT, 60),
        ("plan", plan_text(), 60),
        ("config.json", json.dumps(CONFIG), 40),
        ("DeepSpeed file", DEEPSPEED, 30),
    ):
        places = test_profiles.places(json.loads(text))
        for _ in range(amount):
            where, value = order.choice(places), order.choice([*NUMBERS, *NAMES])
            document = json.loads(text)
            test_profiles.put(document, where, value)
            told = ".".join(map(str, where))
            yield reading(kind, f"{told} = {str(value)[:30]!r}", json.dumps(document))
    for rate in ("1e30GB/s", "0.0000001b/s", "0Gb/s", "-1Gb/s", "1e999Gb/s", "NaNGb/s", "infGb/s", "9" * 400 + "Gb/s"):
        yield reading("cluster file", f"inter_node = {rate[:20]}", TOML.replace("100Gb/s", rate))
    for value in test_runs_csv.VALUES:
        yield reading("CSV of runs", f"a step of {value[:20]!r}", CSV_ROWS.replace("1.0", json.dumps(value)))


def names() -> Iterator[Trial]:
    """Names of hosts, devices and models."""
    for name in NAMES:
        document = json.loads(test_profiles.DOCUMENT)
        document["name"] = document["nodes"][0]["hostname"] = name
        for node in document["nodes"]:
            for device in node["devices"]:
                device.update(name=name or "x", catalog_key=None, health_reason=name)
        write = ("recommend", "--model-size", "350M", "--cluster", "c.json", "-o", "b")
        yield Trial(
            "names", f"{name[:30]!r} in a profile", write, ("b",), put("c.json", json.dumps(document)), looks=_pwned
        )
        plan = json.loads(plan_text())
        plan["variant"] = plan["workload"]["model"]["name"] = name
        plan["warnings"] = plan["assumptions"] = [name]
        for group in plan["groups"]:
            group["node_class"] = group["device_name"] = name
        yield Trial(
            "names", f"{name[:30]!r} in a plan", ("explain", "plan.json"), (), put("plan.json", json.dumps(plan))
        )
        page = ("report", "plan.json", "--cluster", "c.json", "-o", "r.html")

        def both(place: Path, plan: object = plan, document: object = document) -> None:
            put("plan.json", json.dumps(plan))(place)
            put("c.json", json.dumps(document))(place)

        yield Trial("names", f"{name[:30]!r} on a page", page, ("r.html",), both, looks=_no_script)


def _pwned(place: Path) -> str:
    found = [str(path) for path in place.parent.rglob(hostile_inputs.PWNED)]
    return f"a name was executed: {found}" if found else ""


def _no_script(place: Path) -> str:
    page = place / "r.html"
    return "a name became a script" if page.is_file() and "<script>alert(1)" in page.read_text() else ""


def command_lines() -> Iterator[Trial]:
    """The same names where options and arguments stand."""
    commands = (
        ("recommend", "--gpus", "{}", *SIZE, "--no-write"),
        ("recommend", "--gpus=8x{}", *SIZE, "--no-write"),
        ("recommend", *GPUS, "--model", "{}", "--no-write"),
        ("recommend", *GPUS, "--model-size={}", "--no-write"),
        ("recommend", *GPUS, *SIZE, "--strategy", "{}", "--no-write"),
        ("recommend", *GPUS, *SIZE, "--overlay", "{}", "--no-write"),
        ("recommend", *GPUS, *SIZE, "--seq-len={}", "--no-write"),
        ("recommend", "--cluster", "{}", *SIZE, "--no-write"),
        ("compare", "--cluster", "{}", *SIZE),
        ("probe", "--only", "{}", "-o", "p.json"),
        ("probe", "--merge", "{}", "-o", "p.json"),
        ("rules", "show", "{}"),
        ("check", "{}"),
        ("schema", "{}"),
        ("report", "{}"),
        ("backtest", "{}"),
        ("explain", "{}"),
        ("run-config", "{}"),
        ("{}",),
    )
    for command in commands:
        for name in hostile_inputs.FEW_NAMES:
            if name and "\0" not in name:
                words = tuple(word.replace("{}", name) if "{}" in word else word for word in command)
                yield Trial("command lines", f"{' '.join(command)[:40]} with {name[:20]!r}", words, looks=_pwned)
    for rate in ("1e30GB/s", "0b/s", "-1Gb/s", "NaNGb/s", "infGb/s", "\u0661Gb/s", "1_000Gb/s", "0x10Gb/s"):
        words = ("recommend", *SIZE, "--gpus", "2x8xA100-80GB", f"--inter-node={rate}", "--no-write")
        yield Trial("command lines", f"--inter-node={rate}", words)


def environments() -> Iterator[Trial]:
    """Variables."""
    for name, value, command in (
        ("STRATADVISOR_OVERLAYS", "/no/such:" + "x" * 300, ("rules", "list")),
        ("STRATADVISOR_OVERLAYS", "\x1b[2J", ("recommend", *SIZE, *GPUS, "--no-write")),
        ("STRATADVISOR_OVERLAYS", "/dev/zero:/proc/self:.", ("recommend", *SIZE, *GPUS, "--no-write")),
        ("RANK", "$(id)", ("probe", "-o", "p.json")),
        ("COLUMNS", "-5", ("explain", "--help")),
        ("COLUMNS", "9" * 300, ("recommend", *SIZE, *GPUS, "--no-write")),
        ("TERM", "\x1b", ("recommend", *SIZE, *GPUS, "--no-write")),
    ):
        more = {"WORLD_SIZE": "2"} if name == "RANK" else {}
        yield Trial("environment", f"{name}={value[:20]!r}", command, environ={name: value, **more})
    for rank, size, local, port in (
        ("0", "9" * 4000, "1", "29500"),
        ("-1", "2", "1", "29500"),
        ("0", "2", "0", "29500"),
        ("0", "2", "1", "99999"),
        ("9", "2", "1", "29500"),
        ("0", "2", "1", "a[$(id)]"),
    ):
        job = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": local, "MASTER_PORT": port, "MASTER_ADDR": "::1"}
        yield Trial("environment", f"a job {rank}/{size[:8]} {port}", ("probe", "-o", "p.json"), environ=job)


ASK = ("recommend", "--model-size", "350M", *GPUS, "--output", "bundle")


def output_folders() -> Iterator[Trial]:
    """What lies where files are to be written."""
    made = ("train.py", "launch.sh", "plan.json", "README.md", "stratadvisor.lock.json", "stratadvisor_runtime")
    makers: dict[str, Callable[[Path, Path], object]] = {
        "a link to a file outside": lambda path, outside: path.symlink_to(outside / "mine"),
        "a link to a folder outside": lambda path, outside: path.symlink_to(outside),
        "a link to nothing outside": lambda path, outside: path.symlink_to(outside / "new"),
        "a pipe": lambda path, _: os.mkfifo(path),
        "a folder": lambda path, _: path.mkdir(),
        "a loop of links": lambda path, _: path.symlink_to(path.name),
    }
    for inside in made:
        for what, make in makers.items():

            def prepare(place: Path, inside: str = inside, make: Callable[[Path, Path], object] = make) -> None:
                put("outside/mine", "precious")(place)
                (place / "bundle").mkdir()
                make(place / "bundle" / inside, place / "outside")

            for force in ((), ("--force",)):
                yield Trial(
                    "output folders", f"{inside}: {what} {''.join(force)}", (*ASK, *force), ("bundle",), prepare
                )
    for what, target in (
        ("too long", "x" * 300),
        ("a deep one", "a/" * 200),
        ("a device", "/dev/full"),
        ("proc", "/proc/1/x"),
    ):
        yield Trial(
            "output folders", f"{what}", (*ASK[:-1], target), (target.partition("/")[0] or os.path.dirname(target),)
        )
    yield Trial("output folders", "no UTF-8", (*ASK[:-1], b"\xff\x1b[31m"), (os.fsdecode(b"\xff\x1b[31m"),))
    yield Trial("output folders", "a page over a text", ("report", "c.json", "-o", "mine"), (), _with_text)


def _with_text(place: Path) -> None:
    put("mine", "precious")(place)
    put("c.json", test_profiles.DOCUMENT)(place)


def bundles() -> Iterator[Trial]:
    """Bundles of strangers, as run-config, report and explain open them."""

    def edit(change: Callable[[Path], object], place: Path) -> None:
        put("outside/mine", "precious")(place)
        change(bundle(place))

    def lock(name: str, path: Path) -> None:
        document = json.loads((path / "stratadvisor.lock.json").read_text())
        document["digests"][name] = "0" * 64
        (path / "stratadvisor.lock.json").write_text(json.dumps(document))

    def link(name: str, path: Path) -> None:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).unlink(missing_ok=True)
        (path / name).symlink_to(path.parent / "outside")

    def text(name: str, content: str, path: Path) -> None:
        put(f"bundle/{name}", content)(path.parent)

    changes: dict[str, Callable[[Path], object]] = {}
    for name in ("../outside/mine", "/etc/hostname", "a/../../outside/mine", "", ".", "x" * 5000, "a\0b"):
        changes[f"the lock names {name[:20]!r}"] = partial(lock, name)
    for name in ("validation", "proxy", "compare", "compare/zero2"):
        changes[f"{name} leads out"] = partial(link, name)
    for content in ("", "[]", "{", '{"digests": 3}', "[" * 100_000, '{"digests": {"train.py": "\x1b"}}'):
        changes[f"a lock of {content[:12]!r}"] = partial(text, "stratadvisor.lock.json", content)
    for name in ("plan.json", "cluster.json", "train_config.json"):
        for content in ("", "[]", "NaN", "[" * 100_000):
            changes[f"{name} of {content[:6]!r}"] = partial(text, name, content)
    changes["launch.sh edited"] = partial(text, "launch.sh", "touch pwned-by-a-name\n")
    for what, change in changes.items():
        for command in (("run-config", "bundle"), ("report", "bundle", "-o", "r.html")):
            trial = Trial("bundles", f"{what}: {command[0]}", command, ("r.html",), partial(edit, change), looks=_pwned)
            if command[0] == "report" or "leads out" in what or "launch" in what or "plan" in what or "lock" in what:
                yield trial


def metrics() -> Iterator[Trial]:
    """What a run of a stranger wrote, on a page."""
    contents = {
        "empty": "",
        "no JSON": "x\n" * 1000,
        "NaN": METRICS.replace("2.0", "NaN").replace("0.1", "NaN"),
        "infinity": METRICS.replace("2.0", "1e999").replace("0.1", "-1e999"),
        "huge numbers": METRICS.replace("0.1", "1e300").replace("100", "9" * 400),
        "negative": METRICS.replace("0.1", "-1").replace("100", "-100"),
        "zero": METRICS.replace("0.1", "0").replace("2.0", "0"),
        "texts": METRICS.replace("0.1", json.dumps(HOSTILE)).replace("2.0", json.dumps(HOSTILE)),
        "lists": METRICS.replace("0.1", "[1]").replace("2.0", "{}"),
        "unknown events": METRICS.replace('"step"', json.dumps(HOSTILE), 1),
        "deep": '{"event": ' + "[" * 100_000 + "]" * 100_000 + "}\n",
        "a hundred thousand steps": METRICS + (json.dumps(STEP) + "\n") * 100_000,
        "a line of ten megabytes": METRICS + '{"event": "' + "x" * 10_000_000 + '"}\n',
        "another encoding": METRICS.encode("utf-16").decode("latin-1"),
        "backwards": METRICS + json.dumps({**STEP, "step": -5}) + "\n" + json.dumps({**STEP, "step": 10**30}) + "\n",
    }
    for what, content in contents.items():

        def prepare(place: Path, content: str = content) -> None:
            bundle(place)
            put("bundle/validation/metrics.jsonl", content)(place)

        yield Trial("metrics of a run", what, ("report", "bundle", "-o", "r.html"), ("r.html",), prepare)


def overlays() -> Iterator[Trial]:
    """Templates and rules of strangers."""
    for number, template in enumerate(test_templates.ESCAPES):
        prepare = put("o/templates/torchrun/README.md.j2", template)
        yield Trial(
            "templates", f"{number}: {template[:30]}", (*ASK, "--overlay", "o"), ("bundle",), prepare, looks=_pwned
        )
    for template in (
        "{{ 'x' * 9000000000 }}",
        "{{ ['x' * 1000000] * 40 }}",
        "x" * 2_000_000,
        "{% include 'torchrun/README.md.j2' %}",
    ):
        prepare = put("o/templates/torchrun/README.md.j2", template)
        yield Trial("templates", f"bomb {template[:30]}", (*ASK, "--overlay", "o"), ("bundle",), prepare)
    settings = [
        f'environment.{name} = "/tmp/x"' for name in ("LD_PRELOAD", "PYTHONPATH", "PATH", "BASH_ENV", "NCCL_NET_PLUGIN")
    ]
    settings += [
        f"environment.MINE = {value}" for value in ('"a\\nb"', '"\\u0000"', "nan", "[1]", '"' + "x" * 2000 + '"')
    ]
    settings += [f"environment.{json.dumps(name)} = 'x'" for name in ("A B", "A=B", "A$(id)", "", "1A")]
    for setting in settings:
        yield reading("rule file", setting[:40], test_rules.RULE.format(setting=setting))


def launch_scripts() -> Iterator[Trial]:
    """Variables of the environment that bash would compute with."""

    def start(environ: dict[str, str], place: Path) -> None:
        folder = test_launch.write(place / "b", test_launch.hostile_plan(HOSTILE.replace("\r", "")))
        test_launch.start(folder, **environ)

    base = {"NNODES": "3", "NODE_RANK": "1", "MASTER_ADDR": "n0", "MASTER_PORT": "29500"}
    for variable in test_launch.NUMBERS:
        for value in test_launch.VARIABLE_VALUES:
            call = partial(start, {**base, variable: value})
            yield Trial("launch scripts", f"{variable}={value!r}", (), ("b",), call=call, looks=_pwned)


COMMANDS: dict[str, Callable[[str], tuple[str, tuple[object, ...]]]] = {
    "profile": lambda _: READERS["profile"][:2],
    "plan": lambda _: READERS["plan"][:2],
    "cluster_file": lambda _: READERS["cluster file"][:2],
    "model_config": lambda _: READERS["config.json"][:2],
    "rule_file": lambda _: (READERS["rule file"][0], ("rules", "check", "--overlay", "o")),
    "runs_csv": lambda _: READERS["CSV of runs"][:2],
    "deepspeed_json": lambda _: READERS["DeepSpeed file"][:2],
    "accelerate_yaml": lambda _: READERS["Accelerate file"][:2],
    "gpus": lambda text: ("", ("recommend", *SIZE, f"--gpus={text}", "--no-write")),
}


PER_TARGET = 40
"""Of the corpus: a process each takes a second or more; ``tests/hostile/test_corpus.py`` gives readers all of it."""


def corpus() -> Iterator[Trial]:
    """Inputs that fuzzing kept, through the command where there is one that needs no cluster."""
    for folder in sorted(CORPUS.iterdir()):
        for path in sorted(folder.iterdir())[:PER_TARGET]:  # named by their digest: the first are a fair sample
            data = path.read_bytes()
            what = f"{folder.name}/{path.name}"
            if folder.name in COMMANDS and not (folder.name == "gpus" and b"\0" in data):
                name, command = COMMANDS[folder.name](os.fsdecode(data))
                yield Trial("fuzzing corpus", what, command, prepare=put(name, data) if name else None)
            else:
                yield Trial("fuzzing corpus", what, (), call=partial(_attempt, folder.name, data))


def _attempt(name: str, data: bytes, _: Path) -> None:
    from fuzz import targets

    targets.attempt(name, data)


def everything() -> Iterator[Trial]:
    """Every input."""
    for part in (
        damaged,
        files_that_are_none,
        bombs,
        numbers,
        names,
        command_lines,
        environments,
        output_folders,
        bundles,
        metrics,
        overlays,
        launch_scripts,
        corpus,
    ):
        yield from part()
