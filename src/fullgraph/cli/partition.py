"""`fullgraph partition`: partition a graph into a folder, and say how it came out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fullgraph.cli.console import Stages, errors_in_a_line

if TYPE_CHECKING:
    from fullgraph.graph.partition import PartitionedInMemory


def partition(
    graph: Annotated[str, typer.Argument(
        help="An .npz, or pyg:Cora, ogb:ogbn-arxiv, planted:nodes=1e5,edges=1e6")],
    parts: Annotated[int, typer.Option(help="How many parts; as many workers can train on it.")],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    method: Annotated[str, typer.Option(help="metis, random or contiguous.")] = "metis",
    split: Annotated[int, typer.Option(help="Which split, where there are several.")] = 0,
    overwrite: Annotated[bool, typer.Option(
        "--overwrite", help="Replace a partitioned graph that is there.")] = False,
) -> None:  # fmt: skip
    """Partition a graph into a folder, which any number of workers up to PARTS can train on."""
    with errors_in_a_line():
        if out.exists() and not overwrite:
            raise ValueError(f"{out} exists; choose another --out, or add --overwrite")
        _partition(graph, parts, out, method, split, overwrite)
    print(f"partitioned graph: {out}")


def _partition(graph: str, parts: int, out: Path, method: str, split: int, overwrite: bool) -> None:
    from fullgraph.graph.assign import METHODS
    from fullgraph.training.config import GraphOptions, check_parts
    from fullgraph.training.prepare import partition_to

    check_parts(parts, 1)
    if method not in METHODS:
        raise ValueError(f"method {method!r} is unknown; choose one of {', '.join(METHODS)}")
    options = GraphOptions(graph, split=split, method=method)
    partition_to(out, options, parts, Stages(), overwrite, report=_print_report)


def _print_report(partitioned: PartitionedInMemory) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console()
    console.print(partitioned.report.table())
    for warning in partitioned.report.warnings:
        console.print(f"[yellow]warning:[/yellow] {escape(warning)}")
