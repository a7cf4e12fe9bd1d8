"""Read a small JSON file that a user names, with one clear sentence when it cannot be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stratadvisor.errors import ModelError


def read_json_object(path: Path, limit_bytes: int) -> dict[str, Any]:
    """Return the JSON object in ``path``.

    Raises:
        ModelError: it is missing, too large, not UTF-8, not JSON, or not an object.

    """
    hint = "give the path of a Hugging Face config.json"
    try:
        if not path.is_file():
            raise ModelError(f"{path} is not a file" if path.exists() else f"{path} does not exist", hint=hint)
        with path.open("rb") as handle:
            data = handle.read(limit_bytes + 1)
        if len(data) > limit_bytes:
            raise ModelError(f"{path} is larger than {limit_bytes // 1024} KiB, which no config.json is", hint=hint)
        parsed = json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as problem:
        raise ModelError(f"{path} is not UTF-8 text (byte {problem.start})", hint=hint) from None
    except json.JSONDecodeError as problem:
        raise ModelError(
            f"{path} is not JSON: line {problem.lineno}, column {problem.colno}: {problem.msg}", hint=hint
        ) from None
    except (RecursionError, ValueError) as problem:
        raise ModelError(f"{path} is not usable JSON: {type(problem).__name__}", hint=hint) from None
    except OSError as problem:
        raise ModelError(f"{path} cannot be read: {problem.strerror}", hint=hint) from None
    if not isinstance(parsed, dict):
        raise ModelError(f"{path} holds a JSON {type(parsed).__name__}, not an object", hint=hint)
    return parsed
