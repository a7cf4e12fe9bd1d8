"""Read and write profiles, plans and other JSON documents: atomically, version checked, one clear sentence on error."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from stratadvisor.errors import ProfileError, StratadvisorError, UsageError
from stratadvisor.schema.brief import LIKE, SIGNIFICANT_DIGITS, UnlikeError, brief, fold, unfold
from stratadvisor.schema.plan import PLAN_SCHEMA_VERSION, Plan
from stratadvisor.schema.profile import PROFILE_SCHEMA_VERSION, ClusterProfile

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_DOCUMENT_BYTES = 256 * 1024 * 1024
MAX_VALUES = 20_000_000
"""Of a JSON document; parsed, they take about 1.5 GB."""
MAX_KEYS = 4096
"""Of one JSON object."""
MAX_MESSAGE = 500
MAX_DOTS = 500
Model = TypeVar("Model", bound=BaseModel)


def first_problem(error: ValidationError) -> str:
    """Return where the first problem lies and what it is, in one line without pydantic's decoration."""
    problem = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part)[:80] for part in problem["loc"]) or "the document"
    more = error.error_count() - 1
    message = first_line(problem["msg"].removeprefix("Value error, "))
    return f"{place}: {message}" + (f" (and {more} more)" if more else "")


def first_line(text: str) -> str:
    """Return the first line of a message of unknown origin, cut to a length that fits a sentence."""
    line = text.strip().partition("\n")[0]
    return line if len(line) <= MAX_MESSAGE else f"{line[:MAX_MESSAGE]} ..."


def read_text(path: Path, error: type[StratadvisorError], limit_bytes: int = MAX_DOCUMENT_BYTES) -> str:
    """Return a UTF-8 text file, or raise ``error`` with what is wrong with it."""
    try:
        # a pipe that nobody writes to would wait for ever when opened in the usual way
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as stream:
            mode = os.fstat(handle).st_mode
            if stat.S_ISDIR(mode):
                raise error(f"{path} is a directory, not a file")
            if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
                raise error(f"{path} is a device, not a file")
            os.set_blocking(handle, True)
            data = stream.read(limit_bytes + 1)
        if len(data) > limit_bytes:
            raise error(f"{path} is larger than {limit_bytes // 1024**2} MiB, which no such file is")
        return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except FileNotFoundError:
        raise error(f"{path} does not exist") from None
    except IsADirectoryError:
        raise error(f"{path} is a directory, not a file") from None
    except UnicodeDecodeError as problem:
        raise error(f"{path} is not UTF-8 text (byte {problem.start})") from None
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise error(f"{path} cannot be read: {reason}") from None


def _bounded(data: dict[str, object]) -> dict[str, object]:
    if len(data) > MAX_KEYS:
        raise ValueError(f"an object with {len(data)} keys, more than {MAX_KEYS}")
    return data


def parse_json(text: str, path: Path, error: type[StratadvisorError]) -> dict[str, object]:
    """Return the JSON object of ``text``."""
    if sum(map(text.count, "[{,")) > MAX_VALUES:
        raise error(f"{path} holds more than {MAX_VALUES} values, which no such file does")
    try:
        data = json.loads(text, object_hook=_bounded)
    except json.JSONDecodeError as problem:
        raise error(f"{path} is not JSON: line {problem.lineno}, column {problem.colno}: {problem.msg}") from None
    except RecursionError:
        raise error(f"{path} is nested too deeply") from None
    except ValueError as problem:
        raise error(f"{path} is not usable JSON: {str(problem)[:120]}") from None
    if not isinstance(data, dict):
        raise error(f"{path} holds a JSON {type(data).__name__}, not an object")
    return data


def parse_toml(text: str, where: object, error: type[StratadvisorError], *, hint: str = "") -> dict[str, Any]:
    """Return the TOML document ``text``; ``where`` names it in the error."""
    if any(line.count(".") > MAX_DOTS and not line.lstrip().startswith("#") for line in text.splitlines()):
        # the parser takes quadratic time for a key of many parts
        raise error(f"{where} is not usable TOML: a line has more than {MAX_DOTS} dots")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise error(f"{where} is not TOML: {first_line(str(problem))}", hint=hint) from None
    except RecursionError:
        raise error(f"{where} is not usable TOML: nested too deeply") from None
    except ValueError as problem:  # a number of thousands of digits
        raise error(f"{where} is not usable TOML: {first_line(str(problem))}") from None


def validate(model: type[Model], data: object, path: Path, error: type[StratadvisorError]) -> Model:
    """Return ``data`` as a document."""
    try:
        return model.model_validate(data)
    except ValidationError as problem:
        raise error(f"{path}: {first_problem(problem)}") from None
    except RecursionError:
        raise error(f"{path} is nested too deeply") from None


def _check_version(data: dict[str, object], current: int, path: Path, error: type[StratadvisorError]) -> None:
    version = data.get("schema_version", 1)
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise error(f"{path}: schema_version must be a whole number from 1, not {version!r}")
    if version > current:
        raise error(
            f"{path} has schema version {version}; this stratadvisor reads up to {current}",
            hint="update stratadvisor, or write the file again with this version",
        )


@contextmanager
def _no_collector() -> Iterator[None]:
    """Let the collector of cyclic garbage rest: while a million objects are made that all stay, it takes most time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def read_profile(path: Path) -> ClusterProfile:
    """Return the profile in a JSON file of this schema version or an older one."""
    with _no_collector():
        data = parse_json(read_text(path, ProfileError), path, ProfileError)
        _check_version(data, PROFILE_SCHEMA_VERSION, path, ProfileError)
        data["schema_version"] = PROFILE_SCHEMA_VERSION  # whatever an older version wrote means the same in this one
        nodes = data.get("nodes")
        if isinstance(nodes, list) and any(isinstance(node, dict) and LIKE in node for node in nodes):
            try:
                data["nodes"] = unfold(nodes)
            except UnlikeError as problem:
                raise ProfileError(f"{path}: {first_line(str(problem))}") from None
            except RecursionError:
                raise ProfileError(f"{path} is nested too deeply") from None
        return validate(ClusterProfile, data, path, ProfileError)


def read_plan(path: Path) -> Plan:
    """Return the plan in a JSON file."""
    if not path.exists():
        raise UsageError(f"there is no plan at {path}", hint="write one with stratadvisor recommend")
    data = parse_json(read_text(path, StratadvisorError), path, StratadvisorError)
    if isinstance(data, dict) and "nodes" in data and "strategy" not in data:
        raise UsageError(f"{path} is the profile of a cluster, not a plan", hint="give the folder that recommend wrote")
    _check_version(data, PLAN_SCHEMA_VERSION, path, StratadvisorError)
    return validate(Plan, data, path, StratadvisorError)


_TO_ROUND = (float, dict, list)


def dump(document: BaseModel) -> str:
    """Return a document as JSON text: same document, same bytes, on every machine and Python."""
    return json.dumps(_rounded(document.model_dump(mode="json")), indent=2, ensure_ascii=False) + "\n"


def _rounded(value: Any) -> Any:
    """Round all numbers of a document's plain form, in place: copies of ten thousand nodes would take seconds."""
    if type(value) is float:
        return float(f"{value:.{SIGNIFICANT_DIGITS}g}")
    if type(value) is dict or type(value) is list:
        for key, item in value.items() if type(value) is dict else enumerate(value):
            if type(item) in _TO_ROUND:
                value[key] = _rounded(item)
    return value


def dump_profile(profile: ClusterProfile) -> str:
    """Return a profile as the text of its file: short, and read back as the same profile (see ``schema.brief``)."""
    with _no_collector():
        return _profile_text(profile)


def _profile_text(profile: ClusterProfile) -> str:
    seen: dict[int, Any] = {}
    parts = {"schema_version": profile.schema_version, **brief(profile.model_copy(update={"nodes": ()}), seen)}
    lines = []
    for key, value in parts.items():
        text = _indented(value)
        if key == "nodes":
            nodes = [_one_line(node) if LIKE in node else _indented(node, 4) for node in fold(profile.nodes, seen)]
            text = "[\n    " + ",\n    ".join(nodes) + "\n  ]"
        lines.append(f"  {_one_line(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _indented(value: Any, columns: int = 2) -> str:
    # a line break inside a string is an escape in JSON: those in the text are all the writer's
    return json.dumps(value, indent=2, ensure_ascii=False).replace("\n", "\n" + " " * columns)


def _one_line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def digest(document: BaseModel) -> str:
    """Return the SHA-256 of a document's JSON, first 16 hex digits.

    Of a profile it is the same however its file is written: with defaults or without, whole nodes or differences, in
    whichever schema version.
    """
    if isinstance(document, ClusterProfile):
        return _profile_digest(document)
    text = json.dumps(_rounded(document.model_dump(mode="json")), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _profile_digest(profile: ClusterProfile) -> str:
    with _no_collector():
        return hashlib.sha256(b"".join(_canonical_lines(profile))).hexdigest()[:16]


def _canonical_lines(profile: ClusterProfile) -> Iterator[bytes]:
    seen: dict[int, Any] = {}
    texts: dict[int, bytes] = {}
    whole = brief(profile.model_copy(update={"nodes": ()}), seen)
    whole.pop("schema_version", None)
    yield _canonical(whole)
    for node in profile.nodes:
        form = brief(node, seen)
        devices = form.pop("devices", [])
        yield b"\n" + _canonical(form)
        for device in devices:  # nodes of one kind share them
            text = texts.get(id(device))
            if text is None:
                text = texts[id(device)] = b"\n " + _canonical(device)
            yield text


def _canonical(form: dict[str, Any]) -> bytes:
    return json.dumps(form, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()


def atomic_write(path: Path, text: str, *, executable: bool = False) -> None:
    """Write a file so that a reader sees the old or the new text, never half of one.

    Raises:
        StratadvisorError: the directory is missing, read-only or full; the old file is then untouched.

    """
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            umask = os.umask(0)
            os.umask(umask)
            Path(temporary).chmod((0o777 if executable else 0o666) & ~umask)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as problem:
        raise StratadvisorError(f"{path} cannot be written: {problem.strerror}") from None


def write_document(path: Path, document: BaseModel) -> None:
    """Write a document atomically."""
    atomic_write(path, dump_profile(document) if isinstance(document, ClusterProfile) else dump(document))
