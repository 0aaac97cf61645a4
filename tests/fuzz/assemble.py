"""A whole graph from the parts in a folder, by what `Part` says of them and nothing else."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fullgraph.graph.folder import PartitionedFolder
from fullgraph.graph.parts import Part
from fullgraph.graph.typed import Nodes, Relation, TypedGraph
from fullgraph.graph.whole import SPLITS, WholeGraph


def whole_graph(opened: PartitionedFolder) -> Any:
    """A WholeGraph, or a TypedGraph where nodes have types; masks without a node are left out."""
    meta = opened.meta
    parts = [opened.part(k) for k in range(meta.num_parts)]
    edges = torch.cat([_ends(part, parts) for part in parts], dim=1)
    edges = edges[:, torch.cat([part.edge_id for part in parts]).argsort()]
    if meta.node_types:
        return _typed(opened, parts, edges)
    rows = torch.cat([part.node_id for part in parts]).argsort()
    order = torch.cat([part.edge_id for part in parts]).argsort()

    def by(order: Tensor, values: list[Tensor | None]) -> Tensor | None:
        return None if values[0] is None else torch.cat(values)[order]  # type: ignore[arg-type]

    masks = {key: by(rows, [part.masks[key] for part in parts]) for key in meta.mask_names}
    return WholeGraph(
        meta.name, edges, meta.num_nodes, by(rows, [part.x for part in parts]),
        by(rows, [part.y for part in parts]),
        {key: mask for key, mask in masks.items() if mask is not None and bool(mask.any())},
        by(order, [part.edge_weight for part in parts]),
        by(order, [part.edge_attr for part in parts]), meta.num_classes,
        by(order, [part.edge_type for part in parts]), meta.num_relations,
    )  # fmt: skip


def _ends(part: Part, parts: list[Part]) -> Tensor:
    """int64 [2, E_k], ids of the whole graph."""
    ends = torch.empty(2, part.num_edges, dtype=torch.int64)
    for q, other in enumerate(parts):
        edges = slice(int(part.source_offsets[q]), int(part.source_offsets[q + 1]))
        ends[0, edges] = other.node_id[part.src[edges].long()]
        here = (
            torch.full_like(part.dst, part.index) if part.dst_part is None else part.dst_part
        ) == q
        ends[1, here] = other.node_id[part.dst[here].long()]
    return ends


def _typed(opened: PartitionedFolder, parts: list[Part], edges: Tensor) -> TypedGraph:
    meta = opened.meta
    first, nodes = {}, []
    for t, kind in enumerate(meta.node_types):
        first[kind.name] = sum(nodes_.num_nodes for nodes_ in nodes)
        fields = {}
        for name in ("x", "y", *(f"mask.{key}" for key in SPLITS)):
            if meta.field(f"{name}.{t}") is not None:
                fields[name] = torch.cat([part.by_type[f"{name}.{t}"] for part in parts])
        masks = {key: fields.pop(f"mask.{key}") for key in SPLITS if f"mask.{key}" in fields}
        masks = {key: mask for key, mask in masks.items() if bool(mask.any())}
        nodes.append(Nodes(
            kind.name, kind.num_nodes, fields.get("x"), fields.get("y"), masks, kind.num_classes,
        ))  # fmt: skip
    relations, start = [], 0
    for r, relation in enumerate(meta.relations):
        ends = edges[:, start : start + relation.num_edges]
        start += relation.num_edges
        ends = ends - torch.tensor([[first[relation.source]], [first[relation.target]]])
        weight, attr = (
            torch.cat([part.by_type[f"{name}.{r}"] for part in parts])
            if meta.field(f"{name}.{r}") is not None else None
            for name in ("edge_weight", "edge_attr")
        )  # fmt: skip
        relations.append(Relation(*relation.key, ends, weight, attr))
    return TypedGraph(meta.name, tuple(nodes), tuple(relations))
