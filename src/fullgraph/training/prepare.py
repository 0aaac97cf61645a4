"""From a graph's source to a partitioned folder that workers open: once, in the parent."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from fullgraph.comm.load import is_folder, partition_options
from fullgraph.comm.placement import Placement
from fullgraph.graph.disk import WriteError
from fullgraph.graph.folder import PartitionedFolder, save
from fullgraph.graph.partition import PartitionedInMemory, partition
from fullgraph.graph.sources import read
from fullgraph.training.config import GraphOptions, check_parts

Stage = Callable[[str], AbstractContextManager[object]]


def no_stage(name: str) -> AbstractContextManager[object]:
    return nullcontext()


@contextmanager
def partitioned_folder(
    options: GraphOptions, workers: int, stage: Stage = no_stage, placement: str | None = None
) -> Iterator[PartitionedFolder]:
    """The graph as a partitioned folder: the one it is, or one that exists while the block runs.

    The whole graph is in memory only until the folder is written.

    Args:
        stage: told what is being done; the work happens inside what it returns.

    Raises:
        ValueError: the graph cannot be read, or has too few parts; with the reason.
    """
    if is_folder(options.source):
        if options.parts is not None:
            raise ValueError(f"parts={options.parts}: {options.source} is partitioned already")
        folder = PartitionedFolder.open(options.source)
        check_parts(folder.meta.num_parts, workers)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="fullgraph-") as parent:
        path = Path(parent, "graph")
        placed_as = None if placement is None else Placement.parse(placement)
        how = partition_options(placed_as, options.method)
        parts = options.parts or workers
        try:
            partition_to(path, options.source, parts, how, split=options.split, stage=stage)
        except WriteError as error:
            raise WriteError(
                f"{error}: parts on their way to the workers; set TMPDIR to a folder with room, or "
                "run fullgraph partition first"
            ) from error
        yield PartitionedFolder.open(path)


def partition_to(
    path: Path, source: str, parts: int, how: dict[str, Any], *, split: int = 0,
    stage: Stage = no_stage, overwrite: bool = False,
    report: Callable[[PartitionedInMemory], None] | None = None,
) -> None:  # fmt: skip
    """Read, partition and save; `report` sees the partitioned graph before it is saved.

    how: arguments of `partition`, besides the graph and the number of parts.
    """
    with stage(f"reading {source}"):
        graph = read(source, split=split)
    with stage(f"partitioning {graph.num_nodes:,} nodes, {graph.num_edges:,} edges"):
        partitioned = partition(graph, parts, **how)
    if report is not None:
        report(partitioned)
    with stage(f"writing {parts} part(s)"):
        save(partitioned, path, overwrite=overwrite)
