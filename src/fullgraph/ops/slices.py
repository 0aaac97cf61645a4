"""The columns of features in K slices, one for each of the ranks of a grid that share their edges.

Letters: K slices, F columns, F_k those of slice k, H heads, C channels a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from fullgraph import kernels
from fullgraph.comm.distributed import DistributedGraph
from fullgraph.comm.placement import slice_offsets


@dataclass(frozen=True)
class Slices:
    """``ranges[k]``: the runs of columns, first and end, that make up slice k."""

    ranges: tuple[tuple[tuple[int, int], ...], ...]

    @staticmethod
    def even(graph: DistributedGraph, width: int) -> Slices:
        """Of so many columns. Raises ValueError where there are fewer of them than slices."""
        return Slices._of(graph, width, [1], "columns")

    @staticmethod
    def by_heads(graph: DistributedGraph, heads: int, channels: Sequence[int]) -> Slices:
        """Whole heads. Columns are heads × channels[0], then heads × channels[1] and so on; raises
        ValueError where there are fewer heads than slices."""
        return Slices._of(graph, heads, channels, "heads")

    @staticmethod
    def _of(graph: DistributedGraph, size: int, channels: Sequence[int], what: str) -> Slices:
        num_slices = graph.placement.feats
        if size < num_slices:
            raise ValueError(
                f"the placement {graph.placement} needs at least {num_slices} {what}, one for each "
                f"slice, but a layer has {size}; use a grid with a last number of at most {size}"
            )
        bases = [size * sum(channels[:k]) for k in range(len(channels))]
        return Slices(tuple(
            tuple((base + a * c, base + b * c) for base, c in zip(bases, channels))
            for a, b in pairwise(slice_offsets(size, num_slices))
        ))  # fmt: skip

    @property
    def widths(self) -> list[int]:
        """F_k of each slice."""
        return [sum(end - first for first, end in of_slice) for of_slice in self.ranges]

    def of(self, rows: Tensor) -> list[Tensor]:
        """The pieces [n, F_k] of rows [n, F], contiguous; the rows themselves where K is 1."""
        if len(self.ranges) == 1:
            return [rows.contiguous()]
        return [
            kernels.side_by_side([rows[:, first:end] for first, end in of_slice])
            for of_slice in self.ranges
        ]

    def join(self, pieces: Sequence[Tensor]) -> Tensor:
        """[n, F] from pieces [n, F_k]; the inverse of `of`."""
        if len(self.ranges) == 1:
            return pieces[0]
        out = kernels.new_empty(pieces[0], pieces[0].shape[0], sum(self.widths))
        for piece, of_slice in zip(pieces, self.ranges):
            at = 0
            for first, end in of_slice:
                out[:, first:end] = piece[:, at : at + end - first]
                at += end - first
        return out
