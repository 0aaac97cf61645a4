"""More mutated inputs than the tests take: `python -m tests.fuzz --mutations 1000000 --seed 7`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.fuzz.run import describe, fuzz


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--mutations", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs=2, metavar=("TARGET", "NUMBER"), help="one mutation alone")
    given = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="fullgraph-fuzz-"))
    only = (given.only[0], int(given.only[1])) if given.only else None
    report = fuzz(work, given.mutations, given.seed, only, seconds=given.mutations / 100 + 600)
    print(describe(report))
    sys.exit(bool(report["failures"]))


if __name__ == "__main__":
    main()
