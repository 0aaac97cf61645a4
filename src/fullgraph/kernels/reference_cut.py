"""The vertex cut of `fullgraph.kernels.libra` and the owners of its nodes, in readable Python."""

from __future__ import annotations

from collections.abc import Iterable

MASK = 2**64 - 1


def draw(seed: int, i: int, count: int) -> int:
    """Output i of splitmix64 for a seed, brought to 0 .. count - 1."""
    z = (seed + (i + 1) * 0x9E3779B97F4A7C15) & MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return (z ^ z >> 31) * count >> 64


def stream(dst: list[int], num_nodes: int, seed: int) -> list[int]:
    """Positions of the edges in the order in which they are placed: destinations shuffled, the
    edges into each in their order."""
    place = list(range(num_nodes))
    for i in range(num_nodes - 1, 0, -1):
        j = draw(seed, i, i + 1)
        place[i], place[j] = place[j], place[i]
    when = {v: i for i, v in enumerate(place)}
    return sorted(range(len(dst)), key=lambda e: when[dst[e]])


def libra(
    src: list[int], dst: list[int], num_nodes: int, num_parts: int, seed: int,
    max_edges: int | None = None,
) -> tuple[list[int], list[set[int]]]:  # fmt: skip
    """The part of each edge, -1 for a loop, and the parts that hold each node."""
    holders: list[set[int]] = [set() for _ in range(num_nodes)]
    degree = [0] * num_nodes
    for v in [*src, *dst]:
        degree[v] += 1
    load = [0] * num_parts
    edge_part = [-1] * len(src)
    for e in stream(dst, num_nodes, seed):
        u, v = src[e], dst[e]
        if u == v:
            continue
        open_parts = {k for k in range(num_parts) if max_edges is None or load[k] < max_edges}
        if holders[u] and holders[v]:
            lower = u if degree[u] < degree[v] else v
            allowed = holders[u] & holders[v] or holders[lower]
        else:
            allowed = holders[u] | holders[v] or open_parts
        allowed = allowed & open_parts or open_parts
        fewest = min(load[k] for k in allowed)
        ties = sorted(k for k in allowed if load[k] == fewest)
        k = ties[draw(seed, num_nodes + e, len(ties))]
        edge_part[e] = k
        load[k] += 1
        holders[u].add(k)
        holders[v].add(k)
    return edge_part, holders


def choose_owners(holders: list[set[int]], labelled: list[bool], num_parts: int) -> list[int]:
    """The owner of each node."""
    nodes, marked = [0] * num_parts, [0] * num_parts

    def turn(v: int) -> tuple[bool, bool, bool]:
        return len(holders[v]) != 1, len(holders[v]) != 1 and not labelled[v], not holders[v]

    def best(v: int, parts: Iterable[int]) -> int:
        return min(parts, key=lambda k: (marked[k] if labelled[v] else 0, nodes[k], k))

    owner = [-1] * len(holders)
    for v in sorted(range(len(holders)), key=turn):
        owner[v] = k = best(v, holders[v] or range(num_parts))
        nodes[k] += 1
        marked[k] += labelled[v]
    return owner
