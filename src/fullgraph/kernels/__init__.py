"""Native kernels: loops over edges and rows, with no notion of graphs or ranks.

Every kernel writes into the output it is given; `new_empty` and its like give memory for one.
Kernels do not look at index values (see `validate_csr`); dtype, shape, contiguity and device are
checked. Tensors that require a gradient are accepted, and none flows: gradients are the business of
`fullgraph.ops`.

Letters: D ranges of edges, S source rows, E edges, F columns. Edge ranges are three tensors:
``begin`` and ``end``, int64 [D], and ``cols``, int32 [E]: range i has the edges begin[i] ..
end[i] - 1, and the source of edge e is row cols[e] - col_offset. ``rows``, int32 [D] and distinct,
says which row of the output (or other operand) range i is; without it, row i. Rows that are read
may be float32, float64 or bfloat16; sums over bfloat16 are in float32.
"""

from __future__ import annotations

from fullgraph.kernels._attention import (
    EdgeDropout,
    dot,
    dot_grad_source,
    dot_grad_target,
    gat,
    gat_grad,
    gatv2,
    gatv2_grad_source,
    gatv2_grad_target,
    head_dots,
)
from fullgraph.kernels._checks import validate_csr
from fullgraph.kernels._cut import choose_owners, libra
from fullgraph.kernels._dense import DENSE_DTYPES, dense, dense_weight_grad
from fullgraph.kernels._edges import (
    extremum,
    extremum_grad_source,
    extremum_grad_weight,
    sddmm,
    spmm,
)
from fullgraph.kernels._groups import group_by
from fullgraph.kernels._neighbours import ldg, neighbours
from fullgraph.kernels._ops import available_isas, isa, max_threads
from fullgraph.kernels._pool import (
    copy_of,
    new_empty,
    new_zeros,
    release_memory,
    side_by_side,
)
from fullgraph.kernels._rows import dropout, gather_rows, scatter_add_rows

__all__ = [
    "DENSE_DTYPES",
    "EdgeDropout",
    "available_isas",
    "choose_owners",
    "copy_of",
    "dense",
    "dense_weight_grad",
    "dot",
    "dot_grad_source",
    "dot_grad_target",
    "dropout",
    "extremum",
    "extremum_grad_source",
    "extremum_grad_weight",
    "gat",
    "gat_grad",
    "gather_rows",
    "gatv2",
    "gatv2_grad_source",
    "gatv2_grad_target",
    "group_by",
    "head_dots",
    "isa",
    "ldg",
    "libra",
    "max_threads",
    "neighbours",
    "new_empty",
    "new_zeros",
    "release_memory",
    "scatter_add_rows",
    "sddmm",
    "side_by_side",
    "spmm",
    "validate_csr",
]
