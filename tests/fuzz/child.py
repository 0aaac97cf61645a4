"""The process in which mutated inputs are read: `python -m tests.fuzz.child ARGUMENTS`, as JSON.

It notes which input it is at where the parent sees it, so that one that ends the process is known.
"""

from __future__ import annotations

import io
import json
import mmap
import os
import random
import shutil
import struct
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from tests.fuzz.guard import Guard, Violation, peak_memory
from tests.fuzz.targets import REFUSED, TARGETS, Case, Folders, Target, WrongError

STATUS = struct.Struct("<qq")  # target, mutation
MOST_FAILURES = 20  # of a target
MEMORY_WORDS = ("MemoryError", "allocate", "out of memory")


def main() -> None:
    given = json.loads(sys.argv[1])
    work, seed = Path(given["work"]), given["seed"]
    torch.set_num_threads(1)
    os.chdir(work)
    targets = [kind(work / f"{i}", work / "outside") for i, kind in enumerate(TARGETS)]
    guard = Guard()
    for target in targets:
        check_untouched(guard, target)
    limited = guard.limit_memory()
    sys.stderr = io.StringIO()  # where readers say which checkpoint is damaged
    report: dict[str, Any] = {"memory_is_limited": limited, "targets": {}, "failures": []}
    with (work / "status").open("r+b") as file:
        status = mmap.mmap(file.fileno(), STATUS.size)
    for t, target in enumerate(targets):
        start, peak, failures = time.process_time(), peak_memory(), 0
        counts: dict[str, int] = {}
        only = given.get("only")
        numbers = range(round(target.share * given["mutations"]))
        for number in numbers if only is None else [n for k, n in [only] if k == target.name]:
            STATUS.pack_into(status, 0, t, number)
            case = target.case(random.Random(f"{seed}/{target.name}/{number}"))
            outcome, why = judge(guard, target, case)
            counts[outcome] = counts.get(outcome, 0) + 1
            if why:
                kept = keep(target, case, work / "kept" / f"{t}-{number}")
                failure = {"target": target.name, "mutation": number, "why": why, "kept": kept}
                report["failures"].append(failure)
                failures += 1
            target.take_away(case)
            if failures >= MOST_FAILURES:
                break
        report["targets"][target.name] = {
            "counts": counts,
            "seconds": time.process_time() - start,
            "memory": peak_memory() - peak,
        }
    (work / "report").write_text(json.dumps(report))


def check_untouched(guard: Guard, target: Target) -> None:
    """What is not changed is read; and all that is imported on the way is, from here on."""
    for seed in range(len(target.seeds)) if isinstance(target, Folders) else ():
        with guard.watching(target.put(Case(seed))):
            target.read(Case(seed))


def judge(guard: Guard, target: Target, case: Case) -> tuple[str, str]:
    """What became of an input; and why that is a failure, where it is one."""
    folder = target.put(case)
    try:
        with guard.watching(folder):
            return target.read(case), ""
    except WrongError as error:
        return "wrong", str(error)
    except Violation as error:
        return "violation", f"{error}\n{traceback.format_exc()}"
    except target.refusals as error:
        said = str(error)
        if target.refusals == (ValueError,) and type(error) is not ValueError:
            return "raw", traceback.format_exc()
        if not any(name in said for name in target.names(case)):
            return "unnamed", f"the message names nothing of {target.names(case)}: {said}"
        if any(word in said for word in MEMORY_WORDS):
            return "memory", said
        return REFUSED, ""
    except BaseException:
        return "raw", traceback.format_exc()


def keep(target: Target, case: Case, where: Path) -> str:
    """Copy the input as it is; its path, or its text."""
    if case.text is not None:
        return repr(case.text)
    source = target.seeds[case.seed] if isinstance(target, Folders) else target.root
    shutil.copytree(source, where, symlinks=True, ignore=lambda folder, names: [
        name for name in names if not Path(folder, name).is_symlink()
        and not Path(folder, name).is_dir() and not Path(folder, name).is_file()
    ])  # fmt: skip
    return str(where)


if __name__ == "__main__":
    try:
        main()
    finally:
        sys.stderr = sys.__stderr__
