"""The adjacency of `fullgraph.kernels.neighbours` and the parts of `ldg`, in readable Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from fullgraph.kernels.reference_cut import draw

GROWTH, PER_PART, CLUSTER_PASSES, PART_PASSES, STILL = 4, 8, 2, 3, 100
Lists = list[list[int]]


def neighbours(src: list[int], dst: list[int], num_nodes: int) -> Lists:
    """Those of each node, in the order of the edges."""
    edges = list(zip(src, dst))
    both = Counter(edges) != Counter(zip(dst, src))
    found: Lists = [[] for _ in range(num_nodes)]
    for u, v in edges:
        if u != v:
            found[v].append(u)
            if both:
                found[u].append(v)
    return found


class Shuffles:
    """0 .. count - 1 in another order each time."""

    def __init__(self, seed: int, num_nodes: int) -> None:
        self.seed, self.num_nodes, self.turn = seed, num_nodes, 0

    def next(self, count: int) -> list[int]:
        order = list(range(count))
        for i in range(count - 1, 0, -1):
            j = draw(self.seed, self.turn * self.num_nodes + i, i + 1)
            order[i], order[j] = order[j], order[i]
        self.turn += 1
        return order


def weight_of(weights: Lists, nodes: Iterable[int]) -> list[int]:
    return [sum(column) for column in zip(*(weights[v] for v in nodes))]


def join(
    adjacency: Lists, weights: Lists, clusters: Lists, most: list[int], shuffles: Shuffles
) -> Lists:
    """Larger clusters."""
    label = {v: c for c, nodes in enumerate(clusters) for v in nodes}
    load = [weight_of(weights, nodes) for nodes in clusters]
    for _ in range(CLUSTER_PASSES):
        for c in shuffles.next(len(clusters)):
            own = label[clusters[c][0]]
            weight = weight_of(weights, clusters[c])
            load[own] = [have - more for have, more in zip(load[own], weight)]
            inside = set(clusters[c])
            edges = Counter(label[u] for v in clusters[c] for u in adjacency[v] if u not in inside)
            best = own
            for other in edges:
                fits = all(
                    more == 0 or have + more <= limit
                    for have, more, limit in zip(load[other], weight, most)
                )
                if fits and (edges[other], -load[other][0]) > (edges[best], -load[best][0]):
                    best = other
            label.update(dict.fromkeys(clusters[c], best))
            load[best] = [have + more for have, more in zip(load[best], weight)]
    joined: Lists = [[] for _ in clusters]
    for v in sorted(label):
        joined[label[v]].append(v)
    return [nodes for nodes in joined if nodes]


class PartLoads:
    """What each part has, and how much more it is to take."""

    def __init__(self, weights: Lists, num_parts: int) -> None:
        self.total = weight_of(weights, range(len(weights))) or [0, 0, 0]
        heaviest = [max(column) for column in zip(*weights)] or [0, 0, 0]
        self.load = [[0] * len(self.total) for _ in range(num_parts)]
        self.limit = [
            max(total * 21 // (20 * num_parts), -(-total // num_parts) + one - 1, 1)
            for total, one in zip(self.total, heaviest)
        ]

    def room(self, k: int) -> int:
        return min(
            (max(limit - have, 0) << 20) // limit for have, limit in zip(self.load[k], self.limit)
        )

    def overflow(self, k: int, weight: list[int]) -> int:
        return sum(
            (max(have + more - limit, 0) - max(have - limit, 0)) * (2**40 // max(total, 1))
            for have, more, limit, total in zip(self.load[k], weight, self.limit, self.total)
        )

    def add(self, k: int, weight: list[int], sign: int = 1) -> None:
        self.load[k] = [have + sign * more for have, more in zip(self.load[k], weight)]


def move(
    adjacency: Lists, weights: Lists, clusters: Lists, num_parts: int, shuffles: Shuffles,
    loads: PartLoads, part: list[int],
) -> None:  # fmt: skip
    """Clusters to the parts that their edges lead to."""
    for _ in range(PART_PASSES):
        moved = 0
        for c in shuffles.next(len(clusters)):
            own = part[clusters[c][0]]
            weight = weight_of(weights, clusters[c])
            if own >= 0:
                loads.add(own, weight, -1)
            for v in clusters[c]:
                part[v] = -1
            edges = Counter(part[u] for v in clusters[c] for u in adjacency[v])
            merits = [
                (
                    -loads.overflow(k, weight),
                    edges[k] if own >= 0 else edges[k] * loads.room(k),
                    k == own,
                    loads.room(k),
                )
                for k in range(num_parts)
            ]
            best = merits.index(max(merits))
            for v in clusters[c]:
                part[v] = best
            loads.add(best, weight)
            moved += best != own
        if moved * STILL <= len(clusters):
            break


def ldg(adjacency: Lists, weights: Lists, num_parts: int, seed: int) -> list[int]:
    """The part of each node."""
    num_nodes = len(adjacency)
    loads, shuffles = PartLoads(weights, num_parts), Shuffles(seed, num_nodes)
    levels = [[[v] for v in range(num_nodes)]]
    size = GROWTH
    while size * PER_PART * num_parts <= num_nodes:
        most = [total * size // num_nodes + 1 for total in loads.total]
        larger = join(adjacency, weights, levels[-1], most, shuffles)
        if len(larger) == len(levels[-1]):
            break
        levels.append(larger)
        size *= GROWTH
    part = [-1] * num_nodes
    for clusters in reversed(levels):
        move(adjacency, weights, clusters, num_parts, shuffles, loads, part)
    return part
