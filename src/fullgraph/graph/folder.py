"""A partitioned graph on disk: ``graph.json`` and one safetensors file a part, no pickle.

Opening checks the description, and of each file presence, size and header; a part's checksum and
all its indices are checked when it is first loaded. Parts are memory-mapped: pages are read when
they are touched, so a process holds what it uses of its own parts.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fullgraph.graph.check_part import check_part
from fullgraph.graph.disk import to_disk, writing
from fullgraph.graph.manifest import (
    FILE,
    GraphFolderError,
    PartFile,
    expected_arrays,
    part_file_name,
    read_manifest,
    write_manifest,
)
from fullgraph.graph.parts import MASK, GraphMeta, Part, Partitioned, edge_arrays, node_arrays
from fullgraph.graph.plain_file import plain_file
from fullgraph.graph.replace import appearing

__all__ = ["GraphFolderError", "PartitionedFolder", "save"]

DTYPES = {
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "I32": "int32",
    "I64": "int64",
    "BOOL": "bool",
}
CHUNK = 1 << 20
CORE = ("node_id", "source_offsets", "src", "dst", "edge_id")


def save(partitioned: Partitioned, path: str | PathLike[str], overwrite: bool = False) -> None:
    """Write a partitioned graph to the folder `path`, one part after the other.

    The folder appears whole or not at all. Raises GraphFolderError when `path` exists and
    `overwrite` is False, or when it holds anything else than a partitioned graph; WriteError where
    the disk is full or read-only.
    """
    target = Path(path)
    _check_target(target, overwrite)
    meta = partitioned.meta
    with writing(target, _bytes(meta)), appearing(target) as folder:
        files = [_write_part(folder, meta, partitioned.part(k)) for k in range(meta.num_parts)]
        write_manifest(folder / FILE, meta, files)
        to_disk(folder / FILE)


def _bytes(meta: GraphMeta) -> int:
    """Of all arrays of all parts."""
    return sum(
        math.prod(shape) * getattr(torch, dtype).itemsize
        for k in range(meta.num_parts)
        for _, dtype, shape in expected_arrays(meta, k)
    )


def _check_target(target: Path, overwrite: bool) -> None:
    if not target.exists() and not target.is_symlink():
        return
    if not overwrite:
        raise GraphFolderError(f"{target} exists; choose another name, or overwrite it")
    if target.is_symlink() or not target.is_dir():
        raise GraphFolderError(f"{target} is not a folder, so it is not overwritten")
    inside = {entry.name for entry in target.iterdir()}
    ours = {name for name in inside if name == FILE or _is_part_file(name)}
    if inside and (inside != ours or FILE not in ours):
        strange = sorted(inside - ours)[:3] or ["no graph.json"]
        raise GraphFolderError(
            f"{target} is not only a partitioned graph ({', '.join(strange)}), so it is not "
            "overwritten; choose another name"
        )


def _is_part_file(name: str) -> bool:
    number = name.removeprefix("part-").removesuffix(".safetensors")
    return number.isdigit() and name == part_file_name(int(number))


def _write_part(folder: Path, meta: GraphMeta, part: Part) -> PartFile:
    arrays = {name: getattr(part, name) for name in CORE}
    if part.dst_part is not None:
        arrays["dst_part"] = part.dst_part
    arrays |= dict(node_arrays(part)) | dict(edge_arrays(part)) | part.by_type
    _check_arrays(f"part {part.index}", meta, part.index, _describe(arrays))
    path = folder / part_file_name(part.index)
    metadata = {"fingerprint": meta.fingerprint, "part": str(part.index)}
    save_file({name: values.contiguous() for name, values in arrays.items()}, path, metadata)
    # safetensors makes files that only their owner can read; the folder says what is wanted.
    path.chmod(folder.stat().st_mode & 0o666)
    to_disk(path)
    k = part.index
    counts = (meta.part_nodes[k], meta.part_edges[k], meta.part_labelled[k])
    return PartFile(path.name, *counts, path.stat().st_size, _sha256(path))


Described = dict[str, tuple[str, tuple[int, ...]]]


def _describe(arrays: dict[str, Tensor]) -> Described:
    return {
        name: (str(values.dtype).removeprefix("torch."), tuple(values.shape))
        for name, values in arrays.items()
    }


def _check_arrays(where: str, meta: GraphMeta, k: int, found: Described) -> None:
    """Raise GraphFolderError unless these are exactly the arrays that part k has."""
    wanted: Described = {name: (dtype, shape) for name, dtype, shape in expected_arrays(meta, k)}
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise GraphFolderError(
                f"{where}: array {name!r} is {_show(found.get(name))}, but the graph says "
                f"{_show(wanted.get(name))}; the file belongs to another graph, or is damaged"
            )


def _show(described: tuple[str, tuple[int, ...]] | None) -> str:
    return f"{described[0]} {list(described[1])}" if described else "absent"


def _sha256(path: Path) -> str:
    """Of a file, in hex; read in chunks, so that the file is never in memory as a whole."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


class PartitionedFolder:
    """A partitioned graph in a folder; made by `open`.

    ``path``: the folder. ``meta``: see `GraphMeta`.
    """

    def __init__(
        self, path: Path, meta: GraphMeta, files: tuple[PartFile, ...], check: bool
    ) -> None:
        self.path = path
        self.meta = meta
        self._files = files
        self._unchecked = set(range(meta.num_parts)) if check else set()

    @classmethod
    def open(cls, path: str | PathLike[str], check: bool = True) -> PartitionedFolder:
        """Open a folder that `save` wrote; reads no part.

        check: look at a part when it is first loaded: its checksum, and every index in it (reads
        the part once more). Without, what is damaged leads a kernel to other memory.
        Raises GraphFolderError for a folder that is damaged, incomplete, foreign or too new.
        """
        folder = Path(path)
        if not folder.is_dir():
            raise GraphFolderError(
                f"{folder} is not a folder; a partitioned graph is a folder with {FILE} in it"
            )
        if not (folder / FILE).is_file():
            raise GraphFolderError(
                f"{folder} has no {FILE}, so it is not a partitioned graph; make one with "
                "fullgraph partition"
            )
        meta, files = read_manifest(folder / FILE)
        opened = cls(folder, meta, files, check)
        for k in range(meta.num_parts):
            opened._check_file(k)
        return opened

    def part(self, k: int) -> Part:
        """Part k, 0 <= k < meta.num_parts, memory-mapped; writing to its tensors stays private.

        Raises GraphFolderError when the file is gone, its size or checksum does not fit, or, where
        parts are checked, it cannot be a part of this graph; see `check_part`.
        """
        if not 0 <= k < self.meta.num_parts:
            raise ValueError(f"part {k} does not exist; there are {self.meta.num_parts}, from 0")
        self._check_size(k)
        if k in self._unchecked:
            self._check_sum(k)
            try:
                check_part(self.meta, self._read(k))  # whose pages are let go again
            except ValueError as error:
                raise GraphFolderError(
                    f"{self._file(k)} is not valid: {error}; partition the graph again"
                ) from error
            self._unchecked.discard(k)
        return self._read(k)

    def _read(self, k: int) -> Part:
        with _safetensors(self._file(k)) as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        masks = {key: arrays.pop(MASK + key) for key in self.meta.mask_names}
        typed = [field.name for field in self.meta.fields if field.of is not None]
        by_type = {name: arrays.pop(name) for name in typed}
        return Part(index=k, masks=masks, by_type=by_type, **{"x": None, "y": None, **arrays})

    def verify(self) -> None:
        """Look at all that `part` looks at, of every part, and that no node or edge is missing, as
        where two parts have the same. Raises GraphFolderError naming what is damaged."""
        self._unchecked = set(range(self.meta.num_parts))
        found = {"node": torch.zeros(self.meta.num_nodes, dtype=torch.bool),
                 "edge": torch.zeros(self.meta.num_edges, dtype=torch.bool)}  # fmt: skip
        for k in range(self.meta.num_parts):
            part = self.part(k)
            found["node"][part.node_id] = True
            found["edge"][part.edge_id] = True
        for what, known in found.items():
            if not bool(known.all()):
                raise GraphFolderError(
                    f"{self.path} is not valid: {what} {int(known.to(torch.uint8).argmin())} is in "
                    "no part; partition the graph again"
                )

    def _file(self, k: int) -> Path:
        return self.path / self._files[k].file

    def _check_sum(self, k: int) -> None:
        path = self._file(k)
        if _sha256(path) != self._files[k].sha256:
            raise GraphFolderError(
                f"{path} is damaged: its checksum does not fit; restore the file, or partition "
                "the graph again"
            )

    def _check_size(self, k: int) -> None:
        path, wanted = self._file(k), self._files[k].bytes
        try:
            size = plain_file(path).stat().st_size
        except FileNotFoundError as error:
            raise GraphFolderError(
                f"{path} is missing; copy the whole folder, or partition the graph again"
            ) from error
        except OSError as error:
            raise GraphFolderError(f"{path} cannot be read: {error}") from error
        if size != wanted:
            raise GraphFolderError(
                f"{path} has {size} bytes instead of {wanted}; it was cut off or replaced: copy "
                "it again, or partition the graph again"
            )

    def _check_file(self, k: int) -> None:
        self._check_size(k)
        path = self._file(k)
        with _safetensors(path) as file:
            metadata = file.metadata() or {}
            header: Described = {}
            for name in file.keys():  # noqa: SIM118
                array = file.get_slice(name)
                header[name] = (DTYPES.get(array.get_dtype(), "?"), tuple(array.get_shape()))
        if metadata != {"fingerprint": self.meta.fingerprint, "part": str(k)}:
            raise GraphFolderError(
                f"{path} is not part {k} of this graph; copy the whole folder again"
            )
        _check_arrays(str(path), self.meta, k, header)


@contextmanager
def _safetensors(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            yield file
    except (SafetensorError, OSError, RuntimeError) as error:
        raise GraphFolderError(
            f"{path} is damaged: {error}; restore the file, or partition the graph again"
        ) from error
