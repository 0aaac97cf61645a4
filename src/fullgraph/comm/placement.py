"""Placements: on which rank an edge lives, and which columns of features a rank works on.

Nodes are owned the same way under every placement. An edge from u to v, owned by ranks p(u) and
p(v), lives on

* ``destination``: p(v). SAR (arXiv 2111.06483) and most others.
* ``vertex-cut``: the rank that has the part into which the partitioner put it. DistGNN
  (arXiv 2104.06700).
* ``grid:RxCxK``: the K ranks (row of p(v), column of p(u), ·) of a grid of R·C·K ranks, of which
  each works on one of K slices of the columns. CAGNET (arXiv 2005.03300): 1D is Px1x1, 1.5D with
  c replicas (P/c)xcx1, 2D RxCx1, 3D RxCxK; 1x1xP is tensor parallelism.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate

FORMS = "'destination', 'vertex-cut' or 'grid:RxCxK' (such as grid:2x2x1)"


@dataclass(frozen=True)
class Placement:
    """``kind``: "destination", "vertex-cut" or "grid"; ``rows``, ``cols``, ``feats``: R, C, K of a
    grid, 1 otherwise."""

    kind: str = "destination"
    rows: int = 1
    cols: int = 1
    feats: int = 1

    def __str__(self) -> str:
        shape = f":{self.rows}x{self.cols}x{self.feats}" if self.kind == "grid" else ""
        return self.kind + shape

    @staticmethod
    def parse(text: str | Placement) -> Placement:
        """From "destination", "vertex-cut", "grid:RxCxK", "grid:RxC" (K is 1).

        Raises ValueError for anything else.
        """
        if isinstance(text, Placement):
            return text
        if text in ("destination", "vertex-cut"):
            return Placement(text)
        size = "([1-9][0-9]{0,8})"
        found = re.fullmatch(f"grid:{size}x{size}(?:x{size})?", text)
        if found is None:
            raise ValueError(f"placement must be {FORMS}, got {text!r}")
        rows, cols, feats = (int(n or 1) for n in found.groups())
        return Placement("grid", rows, cols, feats)

    def check_ranks(self, num_ranks: int) -> None:
        """ValueError unless this placement is one of so many ranks."""
        product = self.rows * self.cols * self.feats
        if self.kind == "grid" and product != num_ranks:
            shapes = ", ".join(str(shape) for shape in grids_of(num_ranks)[:6])
            raise ValueError(
                f"{self} is a grid of {product} workers, but there are {num_ranks}: the product "
                f"must be the number of workers. For {num_ranks}: {shapes}"
            )

    def coordinates(self, rank: int) -> tuple[int, int, int]:
        """Row, column and slice of a rank of the grid; rank = (row·C + column)·K + slice."""
        return rank // (self.cols * self.feats), rank // self.feats % self.cols, rank % self.feats

    def slice_of(self, rank: int) -> int:
        """Which of the K slices of columns a rank works on; 0 outside of grids."""
        return self.coordinates(rank)[2]

    def rank_of(self, row: int, col: int, feat: int) -> int:
        """The rank at this place of the grid."""
        return (row * self.cols + col) * self.feats + feat

    @property
    def splits(self) -> bool:
        """Whether an edge may live elsewhere than with the owner of its destination."""
        return self.kind != "destination"


DESTINATION = Placement()


def grids_of(num_ranks: int) -> list[Placement]:
    """Every grid of so many ranks, the squarest first."""
    found = [
        Placement("grid", rows, cols, num_ranks // (rows * cols))
        for rows in range(1, num_ranks + 1)
        for cols in range(1, num_ranks // rows + 1)
        if num_ranks % (rows * cols) == 0
    ]
    return sorted(found, key=lambda grid: (grid.feats, abs(grid.rows - grid.cols), grid.cols))


def slice_offsets(width: int, num_slices: int) -> list[int]:
    """Where each of so many slices of `width` columns starts, and the end; sizes differ by at most
    one."""
    size, longer = divmod(width, num_slices)
    return [0, *accumulate(size + (k < longer) for k in range(num_slices))]
