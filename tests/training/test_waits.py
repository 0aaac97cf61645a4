"""What a worker waits for can be read by others, whatever became of it."""

from __future__ import annotations

from pathlib import Path

from fullgraph.training.waits import BYTES, Waits


def test_the_last_wait_of_every_worker_is_read(tmp_path: Path) -> None:
    path = tmp_path / "waits"
    Waits.create(path, 3)
    assert Waits.read(path) == ["", "", ""]
    waits = [Waits(path, rank) for rank in range(3)]
    waits[1]("receiving rows of layer 'größte'")
    waits[1]("sending")
    waits[2]("x" * 2 * BYTES)
    assert Waits.read(path) == ["", "sending", "x" * (BYTES - 1)]
    waits[2]("")
    assert Waits.read(path) == ["", "sending", ""]
