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
    placement: Annotated[str, typer.Option(
        help="Where edges are: destination, with the node they lead into, or vertex-cut, shared "
        "out evenly, so that hubs are in several parts.")] = "destination",
    method: Annotated[str | None, typer.Option(
        help="Of destination: metis (unless given), ldg (where METIS has too little memory), "
        "kahypar (fewest rows to send; pip install mtkahypar), random or contiguous; of "
        "vertex-cut: libra.")
    ] = None,
    balance: Annotated[float | None, typer.Option(
        help="Of vertex-cut: the most edges of a part over the mean, such as 1.05; no limit unless "
        "given.")] = None,
    seed: Annotated[int, typer.Option(help="Of the method.")] = 0,
    order: Annotated[str, typer.Option(
        help="Of the nodes of a part: clusters, neighbours near each other, which trains faster on "
        "large graphs, or given, by id.")] = "clusters",
    split: Annotated[int, typer.Option(help="Which split, where there are several.")] = 0,
    overwrite: Annotated[bool, typer.Option(
        "--overwrite", help="Replace a partitioned graph that is there.")] = False,
) -> None:  # fmt: skip
    """Partition a graph into a folder, which any number of workers up to PARTS can train on."""
    with errors_in_a_line():
        if out.exists() and not overwrite:
            raise ValueError(f"{out} exists; choose another --out, or add --overwrite")
        _partition(graph, parts, out, placement, method, balance, seed, order, split, overwrite)
    print(f"partitioned graph: {out}")


def _partition(
    graph: str, parts: int, out: Path, placement: str, method: str | None, balance: float | None,
    seed: int, order: str, split: int, overwrite: bool,
) -> None:  # fmt: skip
    from fullgraph.graph.disk import check_writable
    from fullgraph.graph.order import check_order
    from fullgraph.graph.partition import check_method
    from fullgraph.training.config import check_parts
    from fullgraph.training.prepare import partition_to

    check_parts(parts, 1)
    method = check_method(method, placement, balance)
    check_writable(out.parent)
    check_order(order)
    how = {
        "method": method, "seed": seed, "placement": placement, "balance": balance, "order": order
    }  # fmt: skip
    partition_to(
        out, graph, parts, how, split=split, stage=Stages(), overwrite=overwrite,
        report=_print_report,
    )  # fmt: skip


def _print_report(partitioned: PartitionedInMemory) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console()
    console.print(partitioned.report.table())
    for warning in partitioned.report.warnings:
        console.print(f"[yellow]warning:[/yellow] {escape(warning)}")
