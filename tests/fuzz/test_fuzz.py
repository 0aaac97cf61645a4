"""Every file that is read, and every text of the command line, mutated a hundred thousand times.

`python -m tests.fuzz --mutations N --seed S` takes longer, or FULLGRAPH_FUZZ=N with this test.
"""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz import child, mutate
from tests.fuzz.child import STATUS
from tests.fuzz.guard import Violation
from tests.fuzz.run import describe, fuzz
from tests.fuzz.targets import PARSERS, REFUSED, TARGETS, Case, Target, Texts, WrongError

MUTATIONS = int(os.environ.get("FULLGRAPH_FUZZ", 105_000))


@pytest.mark.slow
def test_mutated_input_is_refused_by_name_or_read_right(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    report = fuzz(tmp_path, MUTATIONS, seed=0, seconds=600 + MUTATIONS / 50)
    text = describe(report)
    record_property("fuzz", text)
    assert not report["failures"], text
    assert report["mutations"] >= min(MUTATIONS, 100_000)
    for target in report["targets"].values():
        assert target["counts"].get(REFUSED, 0) > 0
        assert target["memory"] < 100e6


def test_every_mutation_is_one_of_a_target() -> None:
    assert abs(sum(target.share for target in TARGETS) - 1) < 1e-9


TEXT = st.text(max_size=40) | st.from_regex(r"[a-z]{0,9}:?([a-z]+=[0-9.e+-]{0,9},?){0,4}")


class Silent:
    """Stands for the guard, which cannot be taken off a process again."""

    def watching(self, folder: str) -> Silent:
        return self

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=150, deadline=None, database=None, derandomize=True)
@given(text=TEXT)
def test_any_text_is_refused_by_name_or_read(name: str, text: str) -> None:
    target = Texts.__new__(Texts)  # without its folder
    outcome, why = child.judge(Silent(), target, Case([*PARSERS].index(name), text=text))  # type: ignore[arg-type]
    assert outcome in (REFUSED, "read"), why


# That faults would be seen -----------------------------------------------------------------------


class Faulty(Target):
    name, share = "faulty", 0.0

    def __init__(self, error: BaseException | None) -> None:
        self.error = error

    def case(self, rng: random.Random) -> Case:
        return Case(0)

    def names(self, case: Case) -> list[str]:
        return ["graph.npz"]

    def read(self, case: Case) -> str:
        if self.error is not None:
            raise self.error
        return "read"


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, "read"),
        (ValueError("graph.npz: it is damaged"), REFUSED),
        (ValueError("it is damaged"), "unnamed"),
        (UnicodeDecodeError("utf-8", b"", 0, 0, "graph.npz"), "raw"),
        (KeyError("graph.npz"), "raw"),
        (RecursionError("graph.npz"), "raw"),
        (zipfile.BadZipFile("graph.npz"), "raw"),
        (ValueError("graph.npz: MemoryError: Unable to allocate 8 TiB"), "memory"),
        (WrongError("nodes do not add up"), "wrong"),
        (Violation("open '/etc/passwd'"), "violation"),
    ],
)
def test_what_a_reader_may_not_do_is_a_failure(error: BaseException | None, outcome: str) -> None:
    found, why = child.judge(Silent(), Faulty(error), Case(0))  # type: ignore[arg-type]
    assert found == outcome
    assert bool(why) == (outcome not in ("read", REFUSED))


GUARDED = """
import os, pickle, sys, time
from pathlib import Path
from tests.fuzz import guard
guard.SECONDS = 0.2
os.chdir(sys.argv[1])
watch = guard.Guard()
limited = watch.limit_memory()
def attempt(do):
    try:
        with watch.watching(os.path.realpath("inside")):
            do()
    except guard.Violation as error:
        print("violation", str(error)[:70].replace(chr(10), " "))
    except MemoryError:
        print("memory")
    else:
        print("quiet")
def swallow():
    try:
        open("outside.txt")
    except BaseException:
        pass
attempt(lambda: Path("inside/file.txt").read_text())
attempt(lambda: Path("outside.txt").read_text())
attempt(lambda: Path("inside/../outside.txt").read_text())
attempt(lambda: Path("inside/link.txt").read_text())
attempt(swallow)
attempt(lambda: Path("inside/new.txt").write_text(""))
attempt(lambda: pickle.loads(Path("inside/file.pkl").read_bytes()))
attempt(lambda: os.remove("inside/file.txt"))
attempt(lambda: time.sleep(5))
attempt(lambda: bytearray(1 << 30) if limited else bytearray(-1 << 70))
"""


def test_the_guard_sees_what_it_is_for(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "outside.txt").write_text("secret")
    (tmp_path / "inside" / "file.txt").write_text("")
    (tmp_path / "inside" / "file.pkl").write_bytes(pickle.dumps([1]))
    (tmp_path / "inside" / "link.txt").symlink_to("../outside.txt")
    done = subprocess.run(
        [sys.executable, "-c", GUARDED, str(tmp_path)], capture_output=True, text=True, timeout=120,
        cwd=Path(__file__).parents[2], check=False,
    )  # fmt: skip
    said = [line.split()[0] for line in done.stdout.splitlines()]
    assert said == ["quiet", *["violation"] * 8, "memory"], done.stdout + done.stderr


def test_a_process_that_ends_is_told_with_its_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here because it has no folder to work in; the number of the input is what was last noted."""
    (tmp_path / "0").write_text("in the way of the first target")
    report = fuzz(tmp_path, 10, seed=0)
    (failure,) = report["failures"]
    assert "exit code 1" in failure["why"]
    assert (failure["target"], failure["mutation"]) == STATUS.unpack(bytes(STATUS.size))


def test_a_mutation_can_be_made_again() -> None:
    data = b"PK" * 100
    for mutation in (mutate.mutate_bytes, lambda rng, d: repr(mutate.pick_value(rng))):
        one, two, other = (mutation(random.Random(seed), data) for seed in ("1", "1", "2"))  # type: ignore[operator]
        assert one == two
        assert one != other
