"""What an operation has to move and to compute, by its arguments: what its time is measured by.

Rows that edges name are counted as often as they are named, as if there were no cache; everything
else once. So an operation can be faster than the machine's memory, where caches serve it. Counted
are additions, multiplications and comparisons of products and of kernels over edges (exponentials
are not); of everything else only bytes.

Letters: D ranges of edges, E edges, F columns.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_iter

OWN = "fullgraph::"

# Kernels over edges: arguments of which each edge reads a row (those that are written to are read,
# too), and operations for each edge and column of the first of them.
EDGE_KERNELS: dict[str, tuple[tuple[str, ...], int]] = {
    "spmm": (("x",), 2),
    "sddmm": (("x",), 2),
    "extremum": (("x",), 2),
    "extremum_grad_source": (("extremum", "share"), 3),
    "extremum_grad_weight": (("x",), 4),
    "gat": (("value", "source_logit"), 2),
    "gat_grad": (("dout", "state", "dtarget_logit"), 4),
    "gatv2": (("source",), 6),
    "gatv2_grad_target": (("source",), 10),
    "gatv2_grad_source": (("dout", "state", "target"), 10),
    "dot": (("key", "value"), 4),
    "dot_grad_target": (("key", "value"), 6),
    "dot_grad_source": (("dout", "state", "query"), 8),
}
# Arguments with a row for each edge.
OF_EDGES = {"cols", "weight", "weight_index", "index", "ids", "edge", "edge_logit", "dedge",
            "dedge_logit"}  # fmt: skip
ATTENTION = ("gat", "dot", "head_dots")  # how the names begin

POOL = f"{OWN}empty"  # memory of earlier tensors
DENSE_KERNELS = {"dense", "dense_weight_grad"}
PRODUCTS = {"aten::mm", "aten::addmm", "aten::addmm_", "aten::bmm", "aten::baddbmm"}
LINEAR = "mkldnn::_linear_pointwise"
MAKES_ROOM = {POOL, "aten::empty", "aten::new_empty", "aten::empty_like",
              "aten::empty_strided", "aten::new_empty_strided", "aten::resize_"}  # fmt: skip
FILLS = {"aten::zero_", "aten::fill_", "aten::zeros", "aten::new_zeros", "aten::zeros_like",
         "aten::full", "aten::new_full", "aten::full_like", "aten::ones", "aten::ones_like",
         "aten::new_ones"}  # fmt: skip
COPIES = {"aten::copy_", "aten::clone", "aten::_to_copy", "aten::cat"}
CHOOSES = {"aten::index", "aten::index_select", "aten::gather"}

SUMS, ATTENTIONS, DENSE, ELEMENTWISE = "sparse sums", "attention", "dense products", "elementwise"
DROPOUT, OTHER, EXCHANGE, ALLOCATION = "dropout", "other", "exchange", "allocation"


class Cost(NamedTuple):
    """Bytes of rows that edges name; bytes that are read or written in order; operations."""

    random: int
    stream: int
    flops: int


NOTHING = Cost(0, 0, 0)


def cost(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Cost:
    """Of one call of an operation, given as a `TorchDispatchMode` sees it, after the call."""
    name = func._schema.name
    if func.is_view or name in MAKES_ROOM or name == "aten::_unsafe_view":
        return NOTHING
    given = dict(zip((a.name for a in func._schema.arguments), args)) | kwargs
    written = {a.name for a in func._schema.arguments if a.alias_info and a.alias_info.is_write}
    kernel = name.removeprefix(OWN)
    if name.startswith(OWN) and kernel in EDGE_KERNELS:
        return _of_edges(kernel, given, written)
    if name.startswith(OWN) and kernel.endswith("_rows"):  # gathers them, or adds to them
        rows = given["out"] if kernel == "gather_rows" else given["x"]
        times = 1 + ("scatter" in kernel)
        return Cost(times * rows.nbytes, rows.nbytes + given["index"].nbytes, 0)
    if name in CHOOSES:
        return Cost(out.nbytes, out.nbytes + _bytes(args[1:]), 0)
    return Cost(0, _moved(name, given, written, out), flops_of_product(func, args) or 0)


def flops_of_product(func: Any, args: tuple[Any, ...]) -> int | None:
    """Operations of a dense product; None where it is none."""
    name: str = func._schema.name
    tensors = [x for x in args if isinstance(x, Tensor)]
    if name.startswith(OWN) and name.removeprefix(OWN) in DENSE_KERNELS:
        return 2 * tensors[0].numel() * tensors[1].shape[1]
    if name in PRODUCTS:
        a, b = tensors[-2:]
        return 2 * a.numel() * b.shape[-1]
    return 2 * tensors[0].numel() * tensors[1].shape[0] if name == LINEAR else None


def allocated(given: Any, out: Any) -> int:
    """The bytes of memory that a call has taken for its results, by arguments and results."""
    return sum(t.untyped_storage().nbytes() for t in _new(given, out))


def family(func: Any) -> str:
    """Which sort of work an operation is."""
    name: str = func._schema.name
    kernel = name.removeprefix(OWN)
    if name in PRODUCTS or name == LINEAR or kernel in DENSE_KERNELS:
        return DENSE
    if name in MAKES_ROOM | FILLS:
        return ALLOCATION
    if "dropout" in name or name.startswith("aten::bernoulli"):
        return DROPOUT
    if name.startswith("c10d::") or (name.startswith(OWN) and kernel.endswith("_rows")):
        return EXCHANGE
    if name.startswith(OWN):
        return ATTENTIONS if kernel.startswith(ATTENTION) else SUMS
    if name in COPIES or torch.Tag.pointwise in func.tags or name.startswith("aten::_foreach_"):
        return ELEMENTWISE
    return OTHER


def _of_edges(kernel: str, given: dict[str, Any], written: set[str]) -> Cost:
    named, operations = EDGE_KERNELS[kernel]
    begin, end = given["begin"], given["end"]
    edges = int(end.numpy(force=True).sum() - begin.numpy(force=True).sum())
    random = stream = 0
    for name, value in given.items():
        if not isinstance(value, Tensor):
            continue
        row = value[:1].numel() * value.element_size() if value.numel() else 0
        times = 1 + (name in written and given.get("accumulate", True))
        if name in named:
            random += times * edges * row
        elif name in OF_EDGES or (name == "out" and value.dim() == 1):
            stream += times * edges * row
        else:
            stream += times * min(begin.numel(), value.shape[0]) * row
    operations -= "weight" in given and given["weight"] is None
    return Cost(random, stream, operations * edges * given[named[0]].shape[1])


def _moved(name: str, given: dict[str, Any], written: set[str], out: Any) -> int:
    reads = {k: v for k, v in given.items() if name not in FILLS}
    if name == "aten::copy_":
        del reads["self"]
    if name.startswith(OWN) and not given.get("accumulate", False):
        reads = {k: v for k, v in reads.items() if k not in written}
    return _bytes(reads) + _bytes([given[k] for k in written]) + _bytes(_new(given, out))


def _new(given: Any, out: Any) -> list[Tensor]:
    """Tensors of a result that are not in the memory of an argument."""
    known = {t.untyped_storage()._cdata for t in tree_iter(given) if isinstance(t, Tensor)}
    results = [t for t in tree_iter(out) if isinstance(t, Tensor)]
    return [t for t in results if t.untyped_storage()._cdata not in known]


def _bytes(values: Any) -> int:
    """A broadcast tensor has no more bytes than its storage."""
    return sum(
        min(t.numel() * t.element_size(), t.untyped_storage().nbytes())
        for t in tree_iter(values)
        if isinstance(t, Tensor)
    )
