"""What ``stratadvisor check`` says of the configurations that other projects ship: a folder with their sources.

    python benchmarks/shipped_configs.py ~/src/accelerate --loader accelerate

Prints each finding that is more than a note, and how many files of which kind were read. A right file must have none;
what stands here has to be wrong with the releases that ``check`` compares with.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from stratadvisor.errors import StratadvisorError
from stratadvisor.lint.detect import detect
from stratadvisor.lint.reader import read_config
from stratadvisor.lint.run import LOADERS, check_file

ENDINGS = (".json", ".yaml", ".yml")


def main() -> None:
    """Check every file below a folder whose keys say whose it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--loader", choices=LOADERS, default="unknown", help="who reads DeepSpeed files")
    chosen = parser.parse_args()
    read: Counter[str] = Counter()
    faulty: Counter[str] = Counter()
    for path in sorted(p for p in chosen.folder.rglob("*") if p.suffix in ENDINGS and p.is_file()):
        try:
            kind = detect(read_config(path).data, path.name)
            checked = check_file(path, loader=chosen.loader)
        except StratadvisorError:
            continue  # nobody's, or no configuration at all
        read[kind] += 1
        told = [f for f in checked.findings if f.severity != "note"]
        faulty[kind] += bool(told)
        for finding in told:
            where = path.relative_to(chosen.folder)
            print(f"{where}:{finding.line or ''} {finding.severity} {finding.code} {finding.message}")
    for kind, count in read.items():
        print(f"{kind}: {count} files, {count - faulty[kind]} without a finding")


if __name__ == "__main__":
    main()
