"""`fullgraph info`: what is in a partitioned graph or a run folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fullgraph.cli.console import errors_in_a_line

if TYPE_CHECKING:
    from rich.table import Table

    from fullgraph.graph.parts import GraphMeta


def info(
    folder: Annotated[Path, typer.Argument(help="A partitioned graph, or a run folder.")],
    verify: Annotated[bool, typer.Option(
        "--verify", help="Compare the checksum of every part of a graph, which reads it all.")
    ] = False,
) -> None:  # fmt: skip
    """Print what is in a partitioned graph or a run folder."""
    from rich.console import Console

    with errors_in_a_line():
        if not folder.is_dir():
            raise ValueError(f"{folder} is not a folder")
        show = _graph_tables if (folder / "graph.json").exists() else _run_tables
        for table in show(folder, verify):
            Console().print(table)


def _graph_tables(folder: Path, verify: bool) -> list[Table]:
    from rich.table import Table

    from fullgraph.graph.folder import PartitionedFolder
    from fullgraph.graph.report import imbalance_of

    opened = PartitionedFolder.open(folder)
    if verify:
        opened.verify()
    meta = opened.meta
    edges = "edges" if meta.part_held else "in-edges"
    counts = {"nodes": meta.part_nodes, edges: meta.part_edges, "labelled": meta.part_labelled}
    if meta.part_held:
        counts["held"] = meta.part_held
    table = Table("part", *counts, title=f"{meta.num_parts} parts")
    for column in table.columns:
        column.justify = "right"
    for k, row in enumerate(zip(*counts.values())):
        table.add_row(str(k), *(f"{n:,}" for n in row))
    table.add_section()
    table.add_row("max/mean", *(f"{imbalance_of(c):.3f}" for c in counts.values()))
    return [_facts(meta.name, _graph_facts(meta, verify)), *_type_tables(meta), table]


def _graph_facts(meta: GraphMeta, verified: bool) -> dict[str, Any]:
    arrays = [f"{f.name} {f.dtype} {['E' if f.of_edges else 'N', *f.shape]}" for f in meta.fields]
    typed = {"relations": meta.num_relations} if meta.field("edge_type") else {}
    if meta.node_types:
        typed = {"node types": len(meta.node_types), **typed}
    return {
        "nodes": f"{meta.num_nodes:,}",
        "edges": f"{meta.num_edges:,}",
        **typed,
        **({} if meta.node_types else {"features": meta.num_features}),
        "classes": meta.num_classes,
        "placement": meta.placement,
        **({"replication factor": f"{meta.replication:.3f}"} if meta.replication else {}),
        "arrays": "\n".join(text.replace("'", "") for text in arrays),
        "fingerprint": meta.fingerprint[:16],
        "checksums": "all right" if verified else "not compared (--verify)",
    }


def _type_tables(meta: GraphMeta) -> list[Table]:
    """The node types and relations of a graph, with counts; none where nodes have no types."""
    from rich.markup import escape
    from rich.table import Table

    if not meta.node_types:
        return []
    nodes = Table("", "node type", "nodes", "features", "classes", "in a part")
    for t, node_type in enumerate(meta.node_types):
        sizes = (node_type.num_nodes, node_type.num_features, node_type.num_classes)
        counts = (f"{n:,}" for n in sizes)
        nodes.add_row(str(t), escape(node_type.name), *counts, _range(node_type.part_nodes))
    edges = Table("", "source", "relation", "target", "edges", "into a part")
    for r, relation in enumerate(meta.relations):
        names = map(escape, relation.key)
        edges.add_row(str(r), *names, f"{relation.num_edges:,}", _range(relation.part_edges))
    for column in (*nodes.columns[2:], *edges.columns[4:]):
        column.justify = "right"
    return [nodes, edges]


def _range(counts: tuple[int, ...]) -> str:
    return f"{min(counts):,} to {max(counts):,}"


def _run_tables(folder: Path, verify: bool) -> list[Table]:
    from fullgraph.training.run_folder import RunFolder

    run = RunFolder(folder)
    config = run.run_config().to_json()
    asked = {**config["graph"], **config["model"], **config["training"]}
    asked |= {key: config[key] for key in ("workers", "threads", "schedule", "wire", "timeout")}
    tables = [_facts("asked for", asked)]
    if run.has_result():
        result = run.result()
        result.pop("traffic", None)
        tables.append(_facts("result", result))
    return tables


def _facts(title: str, facts: dict[str, Any]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title), show_header=False)
    for key, value in facts.items():
        text = value if isinstance(value, str) else json.dumps(value)
        table.add_row(escape(key.replace("_", " ")), escape(text))
    return table
