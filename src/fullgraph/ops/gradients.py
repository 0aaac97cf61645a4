"""Parameters that are the same on every rank: broadcast at the start, gradients summed after."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from fullgraph.comm.group import Group


def sum_gradients(
    parameters: torch.nn.Module | Iterable[Tensor], group: Group | None = None
) -> None:
    """Sum the gradients of all ranks, in one all-reduce a dtype. Call it before `optimizer.step()`.

    A gradient that is missing on some ranks counts as zero there; one that is missing on all ranks
    stays missing, as in one process.

    Args:
        parameters: a module, or the parameters themselves; the same on every rank.
        group: by default the default group of torch.distributed.
    """
    group = Group.of(group)
    if group.size == 1:
        return
    for params in _by_dtype(_trainable(parameters)):
        present = torch.tensor([float(p.grad is not None) for p in params], dtype=params[0].dtype)
        pieces = [p.new_zeros(p.numel()) if p.grad is None else p.grad.reshape(-1) for p in params]
        flat = group.all_reduce(torch.cat([*pieces, present]), "gradients")
        sums, present = flat.split([flat.numel() - len(params), len(params)])
        for p, grad, count in zip(params, sums.split([p.numel() for p in params]), present):
            if count > 0:
                p.grad = grad.view_as(p) if p.grad is None else p.grad.copy_(grad.view_as(p))


def broadcast_parameters(module: torch.nn.Module, group: Group | None = None) -> None:
    """Give every rank the parameters and buffers of rank 0."""
    group = Group.of(group)
    for name, tensor in module.state_dict(keep_vars=True).items():
        if isinstance(tensor, Tensor) and tensor.numel():
            same = tensor.detach().contiguous()
            group.broadcast(same, name)
            with torch.no_grad():
                tensor.copy_(same)


def _trainable(parameters: torch.nn.Module | Iterable[Tensor]) -> list[Tensor]:
    if isinstance(parameters, torch.nn.Module):
        parameters = parameters.parameters()
    return [p for p in parameters if p.requires_grad]


def _by_dtype(parameters: list[Tensor]) -> list[list[Tensor]]:
    dtypes = dict.fromkeys(p.dtype for p in parameters)
    return [[p for p in parameters if p.dtype == dtype] for dtype in dtypes]
