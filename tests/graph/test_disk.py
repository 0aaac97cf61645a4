"""What cannot be written is said in a line: which file, why, how much was needed and free."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest
from safetensors import SafetensorError

from fullgraph.graph.disk import WriteError, check_writable, size, writing


@pytest.mark.parametrize(
    ("error", "needed", "message"),
    [
        (OSError(errno.ENOSPC, "x"), 1_234_567,
         r"No space left on device \(1.2 MB needed, .* free\)"),
        (OSError(errno.ENOSPC, "x"), None, r"No space left on device \([0-9.]+ .?B free\)"),
        (OSError(errno.EROFS, "x", "/hidden"), 5, "Read-only file system"),
        (OSError("encoder"), 5, "encoder"),
        (SafetensorError("IoError(Os { code: 28, kind: StorageFull })"), 3000,
         r"No space left on device \(3.0 kB needed, .* free\)"),
        (SafetensorError("I/O error: File too large (os error 27)"), 3000, "File too large"),
    ],
)  # fmt: skip
def test_the_reason_is_named(
    tmp_path: Path, error: Exception, needed: int | None, message: str
) -> None:
    path = tmp_path / "not" / "there"
    with pytest.raises(WriteError) as caught, writing(path, needed):
        raise error
    assert re.fullmatch(f"cannot write {re.escape(str(path))}: {message}", str(caught.value))


def test_other_errors_and_those_that_have_a_name_pass(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="mine"), writing(tmp_path):
        raise ValueError("mine")
    with pytest.raises(WriteError, match=r"^inner$"), writing(tmp_path):
        raise WriteError("inner")


def test_what_can_be_written_to_is_known_before(tmp_path: Path) -> None:
    check_writable(tmp_path / "not" / "there" / "yet")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(WriteError, match="cannot write /dev/fd/x: "):
        check_writable(Path("/dev/fd/x"))  # a folder in which nobody can make anything
    assert os.listdir(tmp_path) == []


def test_sizes_in_words() -> None:
    assert [size(n) for n in (0, 999, 1000, 2_500_000, 3 * 10**9)] == [
        "0 bytes", "999 bytes", "1.0 kB", "2.5 MB", "3.0 GB",
    ]  # fmt: skip
