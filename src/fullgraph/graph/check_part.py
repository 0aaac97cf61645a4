"""Whether a part that was read can be one of its graph: every index of it leads somewhere.

Kernels look at no index, so one that is let through here reads, or writes, other memory. Letters:
n nodes and E_k edges of the part, P parts, T node types, R relations.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from fullgraph.graph.parts import MASK, GraphMeta, Part, labelled
from fullgraph.graph.typed import Nodes
from fullgraph.graph.validate import validate_labels
from fullgraph.graph.whole import SPLITS
from fullgraph.kernels import group_by

CHUNK = 1 << 20  # edges looked at at once


def check_part(meta: GraphMeta, part: Part) -> None:
    """Raise ValueError, naming the array and position, unless the part is as `Part` promises.

    Its arrays have the dtypes and shapes that the graph says. Features and values on edges may be
    anything; whether other parts have the same node or edge is not seen here.
    """
    _check_within("node_id", part.node_id, meta.num_nodes, "nodes")
    _check_distinct(meta, part.node_id)
    _check_offsets(part)
    _check_ends(meta, part)
    _check_within("edge_id", part.edge_id, meta.num_edges, "edges")
    _check_order(part)
    if part.edge_type is not None:
        _check_within("edge_type", part.edge_type, meta.num_relations, "relations")
    if meta.node_types:
        _check_types(meta, part)
    _check_labels(meta, part)


def _check_within(
    name: str, values: Tensor, count: int, of: str, first: int = 0, where: str = ""
) -> None:
    """first: the position of values[0] in the array."""
    if values.numel() == 0:
        return
    low, high = torch.aminmax(values)
    if int(low) < 0 or int(high) >= count:
        i = _first(values < 0 if int(low) < 0 else values >= count)
        assert i is not None
        raise ValueError(
            f"{name}[{first + i}] is {int(values[i])}{where}, but there are {count} {of}"
        )


def _check_distinct(meta: GraphMeta, node_id: Tensor) -> None:
    if (i := _first(node_id[1:] <= node_id[:-1])) is None:  # ascending, as many are
        return
    if meta.node_types:
        raise ValueError(f"node_id[{i + 1}] is not above the one before, as ids of types are")
    ascending = node_id.sort().values
    if (i := _first(ascending[1:] == ascending[:-1])) is not None:
        raise ValueError(f"node {int(ascending[i])} is in node_id twice")


def _check_offsets(part: Part) -> None:
    offsets = part.source_offsets
    ascend = _first(offsets[1:] < offsets[:-1]) is None
    if int(offsets[0]) != 0 or int(offsets[-1]) != part.num_edges or not ascend:
        raise ValueError(f"source_offsets do not ascend from 0 to {part.num_edges}, its edges")


def _check_ends(meta: GraphMeta, part: Part) -> None:
    for q, (first, end) in enumerate(pairwise(part.source_offsets.tolist())):
        rows, where = meta.part_nodes[q], f" in part {q}"
        _check_within("src", part.src[first:end], rows, "rows", first, where)
    if part.dst_part is None:
        _check_within("dst", part.dst, part.num_nodes, "rows", 0, f" in part {part.index}")
        return
    _check_within("dst_part", part.dst_part, meta.num_parts, "parts")
    num_rows = torch.tensor(meta.part_nodes, dtype=torch.int64)
    for start in range(0, part.num_edges, CHUNK):
        piece = slice(start, start + CHUNK)
        parts, dst = part.dst_part[piece].long(), part.dst[piece]
        if (i := _first((dst < 0) | (dst >= num_rows[parts]))) is not None:
            raise ValueError(
                f"dst[{start + i}] is {int(dst[i])} in part {int(parts[i])}, but there are "
                f"{int(num_rows[parts[i]])} rows"
            )


def _pieces(part: Part, overlap: int = 0) -> Iterator[tuple[int, slice]]:
    """Every source part and its edges, in slices of at most CHUNK edges, and the next `overlap`."""
    for q, (first, end) in enumerate(pairwise(part.source_offsets.tolist())):
        for start in range(first, end, CHUNK):
            yield q, slice(start, min(start + CHUNK + overlap, end))


def _check_order(part: Part) -> None:
    keys = [part.edge_id, part.src, part.dst]  # the last one comes first
    keys += [] if part.dst_part is None else [part.dst_part]
    for _, piece in _pieces(part, overlap=1):
        size = piece.stop - piece.start - 1
        ascends = torch.zeros(size, dtype=torch.bool)
        for key in keys:
            before, after = key[piece][:size], key[piece][1:]
            ascends = (before < after) | ((before == after) & ascends)
        if (i := _first(~ascends)) is not None:
            raise ValueError(
                f"edges {piece.start + i} and {piece.start + i + 1} are not in the order of a part"
            )


def _check_types(meta: GraphMeta, part: Part) -> None:
    """That every node, and both ends of every edge, are of the type that they are said to be."""
    assert part.edge_type is not None  # fields of a typed graph have it
    rows = torch.tensor([  # [P, T + 1], where the rows of each type start
        [0, *accumulate(kind.part_nodes[q] for kind in meta.node_types)]
        for q in range(meta.num_parts)
    ])  # fmt: skip
    first_node = [0, *accumulate(kind.num_nodes for kind in meta.node_types)]
    for t, (start, stop) in enumerate(pairwise(rows[part.index].tolist())):
        ids = part.node_id[start:stop]
        if ids.numel() and not first_node[t] <= int(ids[0]) <= int(ids[-1]) < first_node[t + 1]:
            raise ValueError(f"rows {start} .. {stop - 1} are not nodes of type {t}")
    counts = group_by(part.edge_type, meta.num_relations)[0].diff().tolist()
    if counts != [relation.part_edges[part.index] for relation in meta.relations]:
        raise ValueError(f"edge_type has {counts} edges of the relations")
    index = {kind.name: t for t, kind in enumerate(meta.node_types)}
    ends = [(index[relation.source], index[relation.target]) for relation in meta.relations]
    sources, targets = torch.tensor(ends, dtype=torch.int64).view(-1, 2).T
    first_edge = torch.tensor([0, *accumulate(r.num_edges for r in meta.relations)])
    for q, piece in _pieces(part):
        kinds = part.edge_type[piece]
        for name, values, bounds, of in (
            ("src", part.src, rows[q], sources[kinds]),
            ("dst", part.dst, rows[part.index], targets[kinds]),
            ("edge_id", part.edge_id, first_edge, kinds),
        ):
            found = values[piece]
            if (i := _first((found < bounds[of]) | (found >= bounds[of + 1]))) is not None:
                raise ValueError(
                    f"{name}[{piece.start + i}] is {int(found[i])}, which is not of relation "
                    f"{int(kinds[i])}"
                )


def _check_labels(meta: GraphMeta, part: Part) -> None:
    count = 0
    for nodes in _nodes(meta, part):
        for key, mask in nodes.masks.items():
            _check_within(f"{key}_mask", mask.view(torch.uint8), 2, "values of a bool")
        validate_labels(nodes)
        count += int(labelled(nodes).sum())
    if count != meta.part_labelled[part.index]:
        raise ValueError(
            f"it has {count} labelled nodes, but the graph says {meta.part_labelled[part.index]}"
        )


def _nodes(meta: GraphMeta, part: Part) -> Iterator[Nodes]:
    """The labels and masks of the part, of each type where nodes have types."""
    if not meta.node_types:
        yield Nodes("", part.num_nodes, None, part.y, part.masks, meta.num_classes)
    for t, kind in enumerate(meta.node_types):
        found = part.by_type
        masks = {key: found[f"{MASK}{key}.{t}"] for key in SPLITS if f"{MASK}{key}.{t}" in found}
        rows, classes = kind.part_nodes[part.index], kind.num_classes
        yield Nodes(kind.name, rows, None, found.get(f"y.{t}"), masks, classes)


def _first(bad: Tensor) -> int | None:
    return int(bad.to(torch.uint8).argmax()) if bool(bad.any()) else None
