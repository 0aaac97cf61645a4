"""Parameters that are the same on every rank: broadcast at the start, gradients summed after."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor

from fullgraph.comm.group import Group


def sum_gradients(
    parameters: torch.nn.Module | Iterable[Tensor], group: Group | None = None
) -> None:
    """Sum the gradients of all ranks, in one all-reduce a dtype.

    Call it once before each `optimizer.step()`, after the last `backward()` where gradients are
    accumulated: what it has summed already, it would sum again.

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
        present = params[0].new_tensor([float(p.grad is not None) for p in params])
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


def check_same_parameters(module: torch.nn.Module, group: Group | None = None) -> None:
    """ValueError on every rank unless all ranks hold the same parameters, by the same names and to
    the bit."""
    group = Group.of(group)
    digest = hashlib.sha256()
    for name, parameter in module.named_parameters():
        digest.update(f"{name} {tuple(parameter.shape)} ".encode())
        flat = parameter.detach().cpu().contiguous().view(-1)
        digest.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    digests = torch.zeros(group.size, dtype=torch.int64)
    digests[group.rank] = int.from_bytes(digest.digest()[:6], "big")
    group.all_reduce(digests, "the check of parameters")
    different = (digests != digests[0]).nonzero().view(-1).tolist()
    if different:
        raise ValueError(
            f"ranks {different} start with other parameters than rank 0. Call torch.manual_seed "
            "before the model is made, or fullgraph.broadcast_parameters(model) after"
        )


def _trainable(parameters: torch.nn.Module | Iterable[Tensor]) -> list[Tensor]:
    if isinstance(parameters, torch.nn.Module):
        parameters = parameters.parameters()
    return [p for p in parameters if p.requires_grad]


def _by_dtype(parameters: list[Tensor]) -> list[list[Tensor]]:
    dtypes = dict.fromkeys(p.dtype for p in parameters)
    return [[p for p in parameters if p.dtype == dtype] for dtype in dtypes]
