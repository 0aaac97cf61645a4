"""Linear layers of models, as our own products where they are linear and nothing else."""

from __future__ import annotations

from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor

from fullgraph.ops.products import linear


def is_plain(lin: Any) -> bool:
    """Whether lin(x) is x Wᵀ + b and nothing more: no hooks, parametrizations or adapters."""
    hooked = lin._forward_hooks or lin._forward_pre_hooks
    return type(lin) in (pyg.Linear, torch.nn.Linear) and not hooked


def project(lin: Any, x: Tensor) -> Tensor:
    """lin(x) [n, G] of x [n, F]."""
    out: Tensor = linear(x, lin.weight, lin.bias) if is_plain(lin) else lin(x)
    return out


def narrows(lin: Any) -> bool:
    """Whether rows become narrower, and the product may be taken apart from the bias."""
    return is_plain(lin) and lin.weight.shape[0] < lin.weight.shape[1]


def widens(lin: Any) -> bool:
    return is_plain(lin) and lin.weight.shape[0] > lin.weight.shape[1]
