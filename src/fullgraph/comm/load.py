"""`load`: from anything that holds a graph to this rank's share of it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from fullgraph.comm.distributed import DEFAULT_BLOCK_BYTES, DistributedGraph
from fullgraph.comm.group import Group
from fullgraph.comm.hetero import DistributedHeteroGraph
from fullgraph.comm.schedule import Schedule
from fullgraph.graph.folder import PartitionedFolder, save
from fullgraph.graph.partition import partition
from fullgraph.graph.parts import GraphMeta, Part, Partitioned
from fullgraph.graph.sources import read


class LoadError(ValueError):
    """The graph could not be read or partitioned; every rank raises it with the reason."""


def load(
    source: Any, *, group: Group | None = None, schedule: str | Schedule | None = None,
    parts: int | None = None, method: str = "metis", seed: int = 0,
    max_block_bytes: int = DEFAULT_BLOCK_BYTES, wire: str = "float32", **read_options: Any,
) -> Any:  # fmt: skip
    """This rank's share of a graph. Every rank of the group calls it with the same arguments.

    A partitioned folder is opened by every rank, each its own parts only. Anything else is read
    and partitioned by rank 0, which hands the parts to the others through a temporary folder (so
    for ranks on several hosts, partition first, onto a disk that all of them see).

    Args:
        source: a partitioned folder, or what `read` accepts: a PyG `Data` or `HeteroData`, an
            `.npz`, "pyg:Cora", "ogb:ogbn-arxiv", "planted:nodes=1e5,edges=1e6".
        group: what `init` returned; by default the default group of torch.distributed.
        schedule: "sequential" (default) or "oneshot"; or, approximately, "delayed:r" or "local".
            See `Schedule`.
        parts: how many parts to make, by default one a rank. Not for a partitioned folder.
        method, seed: of partitioning: "metis", "random" or "contiguous".
        max_block_bytes: the largest message of rows.
        wire: the dtype that rows and their gradients travel in: "float32", their own whatever it
            is, or "bf16", which is approximate.
        read_options: for `read`, such as `split`.

    Returns:
        A `DistributedGraph`; a `DistributedHeteroGraph` where nodes have types (`HeteroData`).

    Raises:
        LoadError: the source cannot be read, on whichever rank; with the reason.
        ValueError: more ranks than parts.
    """
    group = Group.of(group)
    if is_folder(source):
        if parts is not None:
            raise ValueError(f"parts={parts} given for {source}, which is partitioned already")
        folder = PartitionedFolder.open(source)
        return share(folder, group, schedule, max_block_bytes, wire)
    parts = group.size if parts is None else parts
    if parts < group.size:
        raise ValueError(
            f"parts={parts} cannot be shared by {group.size} workers; make at least {group.size}"
        )
    if group.size == 1:
        whole = partition(read(source, **read_options), parts, method=method, seed=seed)
        return share(whole, group, schedule, max_block_bytes, wire)
    return _through_folder(
        group, source, parts, method, seed, read_options, schedule, max_block_bytes, wire
    )


def share(
    partitioned: Partitioned, group: Group, schedule: str | Schedule | None = None,
    max_block_bytes: int = DEFAULT_BLOCK_BYTES, wire: str = "float32",
) -> DistributedGraph | DistributedHeteroGraph:  # fmt: skip
    """This rank's share of a partitioned graph; the second where its nodes have types."""
    if partitioned.meta.node_types:
        return DistributedHeteroGraph.build(
            partitioned, group, schedule, max_block_bytes, wire=wire
        )
    return DistributedGraph.build(partitioned, group, schedule, max_block_bytes, wire=wire)


def is_folder(source: Any) -> bool:
    """Whether `source` names a folder, which only a partitioned graph can be."""
    return isinstance(source, (str, Path)) and Path(source).is_dir()


def _through_folder(
    group: Group, source: Any, parts: int, method: str, seed: int, read_options: dict[str, Any],
    schedule: str | Schedule | None, max_block_bytes: int, wire: str,
) -> DistributedGraph | DistributedHeteroGraph:  # fmt: skip
    """Rank 0 partitions into a temporary folder, all open it, and it is removed: what is mapped
    into memory stays readable."""
    parent = Path(tempfile.mkdtemp(prefix="fullgraph-")) if group.rank == 0 else None
    try:
        path, failure = "", ""
        if parent is not None:
            path = str(parent / "graph")
            try:
                save(partition(read(source, **read_options), parts, method=method, seed=seed), path)
            except Exception as error:
                failure = f"{type(error).__name__}: {error}"
        failure, path = _tell(group, failure), _tell(group, path)
        if failure:
            raise LoadError(failure)
        if not Path(path).is_dir():
            raise LoadError(
                f"rank {group.rank} does not see {path}, where rank 0 put the parts. Partition "
                "the graph into a folder on a disk that all hosts share, and load that"
            )
        opened = _OpenParts(PartitionedFolder.open(path))
        graph = share(opened, group, schedule, max_block_bytes, wire)
        group.all_reduce(torch.zeros(1), "the end of loading")
        return graph
    finally:
        if parent is not None:
            shutil.rmtree(parent)


class _OpenParts:
    """A partitioned graph whose parts, once opened, stay mapped when their files are removed."""

    def __init__(self, partitioned: Partitioned) -> None:
        self._partitioned = partitioned
        self._opened: dict[int, Part] = {}

    @property
    def meta(self) -> GraphMeta:
        return self._partitioned.meta

    def part(self, k: int) -> Part:
        if k not in self._opened:
            self._opened[k] = self._partitioned.part(k)
        return self._opened[k]


def _tell(group: Group, text: str) -> str:
    """Rank 0's text, on every rank."""
    data = torch.tensor(list(text.encode()), dtype=torch.uint8)
    size = group.broadcast(torch.tensor([data.numel()]), "the size of a message")
    data = data if group.rank == 0 else torch.empty(int(size), dtype=torch.uint8)
    return bytes(group.broadcast(data, "a message").tolist()).decode() if size else ""
