"""Read what torchtitan's classes and functions take, and write it to ``tests/emit/torchtitan_fields.json``.

    TOKENIZER=. STRATADVISOR_RUN_DIR=run python benchmarks/torchtitan_fields.py FOLDER/titan_config.py

The environment needs torchtitan (and triton), no GPU. What the file imports from torchtitan is looked at; the file is
read by torchtitan's own parser and the parameters of its model are counted as well.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import json
import sys
from importlib.metadata import version
from pathlib import Path

OUTPUT = Path(__file__).parent.parent / "tests" / "emit" / "torchtitan_fields.json"


def parameters(path: Path) -> dict[str, list[str]]:
    """Return "module:name" (of a function, or of a class's Config) -> its parameters."""
    found: dict[str, list[str]] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("torchtitan"):
            continue
        for alias in node.names:
            value = getattr(importlib.import_module(node.module), alias.name)
            config = getattr(value, "Config", value)
            found[f"{node.module}:{alias.name}"] = sorted(
                f"**{name}" if p.kind is p.VAR_KEYWORD else name
                for name, p in inspect.signature(config).parameters.items()
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    path = parser.parse_args().file.resolve()
    import torch
    from torchtitan.config.manager import ConfigManager

    sys.path.insert(0, str(path.parent))
    config = ConfigManager().parse_args(["--module", path.stem, "--config", "planned"])
    with torch.device("meta"):
        model = config.model_spec.model.build()
    print(f"{sum(p.numel() for p in model.parameters())} parameters")
    listed = json.loads(OUTPUT.read_text()) if OUTPUT.exists() else {"parameters": {}}
    listed = {"version": version("torchtitan"), "parameters": listed["parameters"] | parameters(path)}
    OUTPUT.write_text(json.dumps(listed, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
