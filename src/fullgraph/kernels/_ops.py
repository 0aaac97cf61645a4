"""The kernels as torch.library custom ops: native on a CPU, the readable reference elsewhere.

Arguments are positional, in the order of `reference`, and have been checked by the caller.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.utils.dlpack import from_dlpack

from fullgraph.kernels import reference, reference_attention
from fullgraph.kernels._runtime import load_native

native = load_native()
_LIBRARY = torch.library.Library("fullgraph", "DEF")


def isa() -> str:
    """The instruction set in use."""
    return str(native.isa())


def available_isas() -> list[str]:
    """The instruction sets this machine has, worst first; FULLGRAPH_ISA chooses one."""
    return list(native.available_isas())


def max_threads() -> int:
    """How many threads a kernel gets: what `torch.set_num_threads` said, or fewer."""
    return int(native.max_threads())


def _register(
    function: Callable[..., None], on_cpu: Callable[..., None], mutates: str
) -> Callable[..., None]:
    """An op with the signature of `function`, which mutates these arguments.

    (`torch.library.custom_op` makes the same with a Python function for each dispatch key, which
    takes three times as long as a small kernel.)
    """
    name, changed = function.__name__, mutates.split()
    op = _define(name, torch.library.infer_schema(function, mutates_args=changed))
    _LIBRARY.impl(name, function, "CompositeExplicitAutograd")
    _LIBRARY.impl(name, on_cpu, "CPU")
    torch.library.register_fake(f"fullgraph::{name}", _nothing)
    parameters = [*inspect.signature(function).parameters]
    written = [parameters.index(argument) for argument in changed]

    def call(*args: Any) -> None:
        op(*(a.detach() if isinstance(a, Tensor) and a.requires_grad else a for a in args))
        if not torch.compiler.is_compiling():  # which sees it in the schema
            _note_change([args[k] for k in written if args[k] is not None])

    return call


def _note_change(tensors: list[Tensor]) -> None:
    """So that autograd notices where it needs what was there."""
    increment_version([tensor for tensor in tensors if not tensor.is_inference()])


def _define(name: str, schema: str) -> Callable[..., Any]:
    _LIBRARY.define(name + schema)
    op: Callable[..., Any] = getattr(torch.ops.fullgraph, name).default
    return op


def _nothing(*args: Any, **kwargs: Any) -> None:
    """The fake of an op that returns nothing and only writes into its arguments."""


def _gather_on_cpu(x: Tensor, index: Tensor, out: Tensor) -> None:
    if x.dtype == out.dtype:
        x, out = x.view(torch.uint8), out.view(torch.uint8)
    native.gather_rows(x, index, out)


def _dropout_on_cpu(
    x: Tensor, ids: Tensor, out: Tensor, p: float, seed: int, step: int, layer: int
) -> None:
    scale = 1 / (1 - p) if p < 1 else 0.0
    native.dropout(x, ids, out, int(p * 2**32), scale, seed % 2**64, step, layer)


# What DLPack calls a number: its kind and its bits.
_DLPACK = {
    torch.float64: (2, 64), torch.float32: (2, 32), torch.bfloat16: (4, 16),
    torch.int64: (0, 64), torch.int32: (0, 32), torch.uint8: (1, 8),
}  # fmt: skip


def empty(like: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A new tensor on the device of another one."""
    return like.new_empty(shape, dtype=dtype)


def _empty_on_cpu(like: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    if dtype not in _DLPACK:
        return empty(like, shape, dtype)
    return from_dlpack(native.pooled(list(shape), *_DLPACK[dtype]))


new_empty = _define("empty", torch.library.infer_schema(empty, mutates_args=()))
_LIBRARY.impl("empty", empty, "CompositeExplicitAutograd")
_LIBRARY.impl("empty", _empty_on_cpu, "CPU")
torch.library.register_fake("fullgraph::empty", empty)

spmm = _register(reference.spmm, native.spmm, "out")
sddmm = _register(reference.sddmm, native.sddmm, "out")
extremum = _register(reference.extremum, native.extremum, "out count")
extremum_grad_source = _register(reference.extremum_grad_source, native.extremum_grad_source, "dx")
extremum_grad_weight = _register(reference.extremum_grad_weight, native.extremum_grad_weight, "out")
gather_rows = _register(reference.gather_rows, _gather_on_cpu, "out")
scatter_add_rows = _register(reference.scatter_add_rows, native.scatter_add_rows, "out")
dropout = _register(reference.dropout, _dropout_on_cpu, "out")
dense = _register(reference.dense, native.dense, "out")
dense_weight_grad = _register(reference.dense_weight_grad, native.dense_weight_grad, "out sums")


def _register_attention(name: str, mutates: str) -> Callable[..., None]:
    """An op whose arguments p and seed the native kernel takes as a threshold, a scale and the
    seed without its sign."""
    function = getattr(reference_attention, name)
    on_cpu = getattr(native, name)
    at = list(inspect.signature(function).parameters).index("p")

    def call(*args: Any) -> None:
        p, seed = args[at : at + 2]
        drop = int(p * 2**32), 1 / (1 - p) if p < 1 else 0.0, seed % 2**64
        on_cpu(*args[:at], *drop, *args[at + 2 :])

    return _register(function, call, mutates)


gat = _register_attention("gat", "out top total")
gat_grad = _register_attention("gat_grad", "dvalue dsource_logit dtarget_logit dedge_logit")
gatv2 = _register_attention("gatv2", "out top total")
gatv2_grad_target = _register_attention("gatv2_grad_target", "dtarget datt dedge")
gatv2_grad_source = _register_attention("gatv2_grad_source", "dsource")
dot = _register_attention("dot", "out top total")
dot_grad_target = _register_attention("dot_grad_target", "dquery dedge")
dot_grad_source = _register_attention("dot_grad_source", "dkey dvalue")
head_dots = _register(reference_attention.head_dots, native.head_dots, "out")
