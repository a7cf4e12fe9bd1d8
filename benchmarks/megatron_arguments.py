"""Read the arguments that Megatron-LM's own parser has, and write them to ``tests/emit/megatron_arguments.json``.

    python benchmarks/megatron_arguments.py CLONE [--arguments FILE --world-size N]

CLONE: a checkout of Megatron-LM; the environment needs torch, triton and what else Megatron-LM imports, no GPU. With
``--arguments`` a file of a bundle is parsed and validated by Megatron-LM itself, a GPU of capability 9.0 assumed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import typing
from pathlib import Path
from typing import Any

OUTPUT = Path(__file__).parent.parent / "tests" / "emit" / "megatron_arguments.json"


def kind(action: argparse.Action) -> str:
    """Return flag, int, float or text."""
    if action.nargs == 0:
        return "flag"
    return {int: "int", float: "float"}.get(action.type, "text")  # type: ignore[call-overload, no-any-return]


def described(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Return option -> kind and choices."""
    found: dict[str, Any] = {}
    for action in parser._actions:  # noqa: SLF001
        for option in action.option_strings:
            if option.startswith("--"):
                choices = [str(getattr(c, "name", c)) for c in action.choices or ()]
                found[option] = {"kind": kind(action)} | ({"choices": choices} if choices else {})
    return dict(sorted(found.items()))


def words(path: Path) -> list[str]:
    """Return the arguments of a bundle's file, as launch.sh reads them."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [word for line in lines if not line.startswith("#") for word in line.split()]


def main() -> None:
    own = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    own.add_argument("clone", type=Path)
    own.add_argument("--arguments", type=Path)
    own.add_argument("--world-size", type=int, default=1)
    chosen = own.parse_args()
    if not hasattr(typing, "override"):  # Python below 3.12, which Megatron-LM no longer names but still runs on
        import typing_extensions

        typing.override = typing_extensions.override  # type: ignore[attr-defined]
    sys.path.insert(0, str(chosen.clone))
    import torch
    from megatron.core import package_info
    from megatron.training import arguments

    parser = argparse.ArgumentParser(allow_abbrev=False)
    arguments.add_megatron_arguments(parser)
    if chosen.arguments is None:
        listed = {"version": package_info.__version__, "arguments": described(parser)}
        OUTPUT.write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")
        return
    os.environ["WORLD_SIZE"] = str(chosen.world_size)
    arguments.get_device_arch_version = lambda: 9
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    given = parser.parse_args([*words(chosen.arguments), "--mock-data", "--tokenizer-type", "NullTokenizer"])
    given.rank, given.world_size = 0, chosen.world_size
    validated = arguments.validate_args(given)
    print(f"valid: data-parallel size {validated.data_parallel_size}, {validated.num_layers} layers")


if __name__ == "__main__":
    main()
