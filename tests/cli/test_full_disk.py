"""Disks that are full or read-only: one line that names the path, exit code 1, and what was there
before as it was."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from fullgraph.graph.folder import PartitionedFolder
from fullgraph.training.run_folder import RunFolder
from fullgraph.training.snapshot import find, read
from tests.hosts import processes

pytestmark = pytest.mark.slow

SMALL = "planted:nodes=60,edges=100,classes=3,features=8"
LARGE = "planted:nodes=3000,edges=3000,classes=40,features=100"  # 1.2 MB of features
SIZE = 1 << 20
MOUNT = 'mount -t tmpfs -o size="$2" tmpfs "$1" && echo ready && exec cat'
ALONE = {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "localhost", "MASTER_PORT": 29555}


class Disk(NamedTuple):
    """``pid``: of a process that sees it at ``there``; this one sees it at ``path``."""

    pid: int
    there: Path
    path: Path

    def fill(self, leave: int) -> None:
        free = subprocess.run(
            ["stat", "--file-system", "--format=%a %S", self.path], capture_output=True, text=True
        ).stdout.split()
        (self.path / "full").write_bytes(bytes(int(free[0]) * int(free[1]) - leave))

    def make_read_only(self) -> None:
        command = ["nsenter", f"--target={self.pid}", "--mount", "mount", "-o", "remount,ro"]
        subprocess.run([*command, self.there], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A tmpfs of a megabyte, which ends with the process that mounted it in its own namespace."""
    there = tmp_path / "disk"
    there.mkdir()
    process = subprocess.Popen(
        ["unshare", "--mount", "sh", "-ec", MOUNT, "sh", there, str(SIZE)], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        if process.stdout.readline() != "ready\n":
            pytest.skip(f"this kernel refuses to mount a tmpfs: {process.communicate()[1].strip()}")
        yield Disk(process.pid, there, Path(f"/proc/{process.pid}/root{there}"))
    finally:
        process.communicate()


class Said(NamedTuple):
    code: int
    out: str
    err: str


def run(disk: Disk, *words: object, **variables: object) -> Said:
    folder = disk.there.parent
    program = processes.start(disk.pid, folder, "program", processes.fullgraph, *words, **variables)
    return Said(program.wait(120), program.out, program.err)


def check_line(said: Said, *wanted: str) -> None:
    assert said.code == 1, said.err
    (line,) = said.err.splitlines()
    assert line.startswith("fullgraph: error: ")
    for words in wanted:
        assert words in line


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_a_partition_that_finds_no_room_leaves_the_one_before(disk: Disk) -> None:
    out = disk.there / "parts"
    said = run(disk, "partition", LARGE, "--parts", 2, "--out", out)
    check_line(said, f"cannot write {out}: No space left on device (1.", "MB needed, ", "B free)")
    assert files(disk.path) == set()
    assert run(disk, "partition", SMALL, "--parts", 2, "--out", out).code == 0
    before = files(disk.path)
    said = run(disk, "partition", LARGE, "--parts", 2, "--out", out, "--overwrite")
    check_line(said, f"cannot write {out}: No space left on device")
    assert files(disk.path) == before
    opened = PartitionedFolder.open(disk.path / "parts")
    opened.verify()
    assert opened.meta.num_nodes == 60


def test_a_checkpoint_that_finds_no_room_ends_training_and_leaves_the_one_before(
    disk: Disk,
) -> None:
    # 0.3 MB a checkpoint: the fourth comes before the second goes, for which there is no room
    out = disk.there / "run"
    words = ("train", SMALL, "--hidden", 1500, "--layers", 2, "--out", out, "--epochs")
    said = run(disk, *words, 9, "--checkpoint-every", 2, **ALONE)
    check_line(said, "the checkpoint ", "cannot be written (No space left on device (",
               " needed, ", "Make room or choose another folder, then resume")  # fmt: skip
    folder = RunFolder(disk.path / "run")
    (newest, *_) = find(folder.checkpoints)
    read(newest)
    assert f"{newest.name} is as it was" in said.err
    assert [line["epoch"] for line in folder.metrics()][: int(newest.name[6:])]
    assert folder.result()["status"] == "failed"
    assert "No space left on device" in folder.result()["error"]


def test_training_whose_disk_fills_up_says_so_at_once(disk: Disk) -> None:
    out = disk.there / "run"
    disk.fill(leave=12_000)
    said = run(disk, "train", SMALL, "--workers", 1, "--epochs", 10**6, "--out", out)
    metrics = out / "metrics.jsonl"
    check_line(said, f"worker 0 failed: WriteError: cannot write {metrics}: No space left on devi")
    folder = RunFolder(disk.path / "run")
    epochs = [line["epoch"] for line in folder.metrics()]
    assert 10 < len(epochs) < 100
    assert epochs == list(range(1, len(epochs) + 1))
    assert folder.config()["workers"] == 1
    assert files(folder.path) <= {"config.json", "metrics.jsonl", "result.json"}


def test_predictions_that_find_no_room_leave_those_before(disk: Disk) -> None:
    out, run_folder = disk.there / "p.npz", disk.there.parent / "run"
    trained = run(disk, "train", LARGE, "--epochs", 1, "--out", run_folder, **ALONE)
    assert trained.code == 0, trained.err
    (disk.path / "p.npz").write_bytes(b"before")
    disk.fill(leave=300_000)
    said = run(disk, "predict", run_folder, "--out", out)
    check_line(said, f"cannot write {out}: No space left on device (504.0 kB needed, ")
    assert files(disk.path) == {"full", "p.npz"}
    assert (disk.path / "p.npz").read_bytes() == b"before"


def test_a_read_only_disk_is_known_before_the_work(disk: Disk) -> None:
    run_folder = disk.there.parent / "run"
    trained = run(disk, "train", SMALL, "--epochs", 1, "--out", run_folder, **ALONE)
    assert trained.code == 0, trained.err
    disk.make_read_only()
    out = disk.there / "out"
    for words in (
        ("partition", "no/such.npz", "--parts", 2, "--out", out),
        ("train", SMALL, "--out", out),
        ("train", SMALL, "--out", out / "deep"),
        ("predict", run_folder, "--out", out.with_suffix(".npz")),
    ):
        said = run(disk, *words)
        check_line(said, f"error: cannot write {disk.there}", ": Read-only file system")
        assert said.out == ""  # no stage has begun
    said = run(disk, "train", SMALL, "--out", out, **ALONE)
    check_line(said, f"cannot write {out}: Read-only file system")
