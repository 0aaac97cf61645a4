"""`load`: from anything that holds a graph to this rank's share of it."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from fullgraph.comm.distributed import DEFAULT_BLOCK_BYTES, DistributedGraph
from fullgraph.comm.group import Group
from fullgraph.comm.hetero import DistributedHeteroGraph
from fullgraph.comm.placed_edges import check_placement
from fullgraph.comm.placement import Placement
from fullgraph.comm.schedule import Schedule
from fullgraph.graph.folder import PartitionedFolder, save
from fullgraph.graph.partition import check_method, partition
from fullgraph.graph.parts import DESTINATION, GraphMeta, Part, Partitioned
from fullgraph.graph.sources import read


class LoadError(ValueError):
    """The graph could not be read or partitioned; every rank raises it with the reason."""


def load(
    source: Any, *, group: Group | None = None, schedule: str | Schedule | None = None,
    parts: int | None = None, method: str | None = None, seed: int = 0, order: str = "given",
    max_block_bytes: int = DEFAULT_BLOCK_BYTES, placement: str | Placement | None = None,
    wire: str = "float32", **read_options: Any,
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
        method, seed: of partitioning: "metis" (by default; "random" for a grid), "ldg", "kahypar",
            "random" or "contiguous", or "libra" (for a vertex cut).
        order: of the rows of a part: "given", in which one worker has them as they came, or
            "clusters", which is faster on large graphs. Not for a partitioned folder.
        max_block_bytes: the largest message of rows; they are smaller where ranks own few.
        placement: where edges live: "destination", "vertex-cut" or "grid:RxCxK", see `Placement`.
            By default what a partitioned folder is for, and otherwise "destination".
        wire: the dtype that rows and their gradients travel in: "float32", their own whatever it
            is, or "bf16", which is approximate.
        read_options: for `read`, such as `split`.

    Returns:
        A `DistributedGraph`; a `DistributedHeteroGraph` where nodes have types (`HeteroData`).

    Raises:
        LoadError: the source cannot be read, on whichever rank; with the reason.
        ValueError: more ranks than parts; a placement of another number of workers, or a folder
            that was partitioned for another.
    """
    group = Group.of(group)
    placement = None if placement is None else Placement.parse(placement)
    if placement is not None:
        placement.check_ranks(group.size)
    shared: dict[str, Any] = {
        "schedule": schedule, "max_block_bytes": max_block_bytes, "placement": placement,
        "wire": wire,
    }  # fmt: skip
    if is_folder(source):
        if parts is not None:
            raise ValueError(f"parts={parts} given for {source}, which is partitioned already")
        return share(PartitionedFolder.open(source), group, **shared)
    how = {**partition_options(placement, method, order), "seed": seed}
    parts = group.size if parts is None else parts
    if parts < group.size:
        raise ValueError(
            f"parts={parts} cannot be shared by {group.size} workers; make at least {group.size}"
        )
    if group.size == 1:
        whole = partition(read(source, **read_options), parts, **how)
        return share(whole, group, **shared)
    return _through_folder(group, source, parts, how, read_options, shared)


def partition_options(
    placement: Placement | None, method: str | None, order: str = "clusters"
) -> dict[str, Any]:
    """How to partition a graph for a placement, as arguments of `partition`. Raises ValueError for
    a method that the placement does not have."""
    kind = "vertex-cut" if placement is not None and placement.kind == "vertex-cut" else DESTINATION
    if method is None and placement is not None and placement.kind == "grid":
        method = "random"  # even blocks; which nodes are near each other does not matter
    return {"method": check_method(method, kind), "placement": kind, "order": order}


def share(
    partitioned: Partitioned, group: Group, schedule: str | Schedule | None = None,
    max_block_bytes: int = DEFAULT_BLOCK_BYTES, placement: Placement | None = None,
    wire: str = "float32",
) -> DistributedGraph | DistributedHeteroGraph:  # fmt: skip
    """This rank's share of a partitioned graph; the second where its nodes have types."""
    if not partitioned.meta.node_types:
        return DistributedGraph.build(
            partitioned, group, schedule, max_block_bytes, placement, wire
        )
    if placement is not None:
        check_placement(partitioned, placement, group.size)
    return DistributedHeteroGraph.build(partitioned, group, schedule, max_block_bytes, wire=wire)


def is_folder(source: Any) -> bool:
    """Whether `source` names a folder, which only a partitioned graph can be."""
    return isinstance(source, (str, Path)) and os.path.isdir(source)


def _through_folder(
    group: Group, source: Any, parts: int, how: dict[str, Any], read_options: dict[str, Any],
    shared: dict[str, Any],
) -> DistributedGraph | DistributedHeteroGraph:  # fmt: skip
    """Rank 0 partitions into a temporary folder, all open it, and it is removed: what is mapped
    into memory stays readable."""
    parent = Path(tempfile.mkdtemp(prefix="fullgraph-")) if group.rank == 0 else None
    try:
        path, failure = "", ""
        if parent is not None:
            path = str(parent / "graph")
            try:
                save(partition(read(source, **read_options), parts, **how), path)
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
        graph = share(_OpenParts(PartitionedFolder.open(path)), group, **shared)
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
