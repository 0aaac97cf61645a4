"""Train any PyG model on the whole graph, exactly, on as many workers as it takes.

Names are loaded when they are first used, so that `fullgraph --help` does not wait for torch.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

# Read by torch when it makes its first tensor: those of 2 MiB and more ask for huge pages, which
# take a fraction of the time to get. Set it to 0 for torch's own default.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

if TYPE_CHECKING:
    from fullgraph.comm.distributed import DistributedGraph as DistributedGraph
    from fullgraph.comm.group import CommError as CommError
    from fullgraph.comm.group import Group as Group
    from fullgraph.comm.group import init as init
    from fullgraph.comm.hetero import DistributedHeteroGraph as DistributedHeteroGraph
    from fullgraph.comm.load import LoadError as LoadError
    from fullgraph.comm.load import load as load
    from fullgraph.comm.schedule import Schedule as Schedule
    from fullgraph.comm.schedule import delayed as delayed
    from fullgraph.comm.schedule import local as local
    from fullgraph.comm.schedule import oneshot as oneshot
    from fullgraph.comm.schedule import sequential as sequential
    from fullgraph.comm.seeds import SeedGraphs as SeedGraphs
    from fullgraph.nn.convert import UnsupportedLayerError as UnsupportedLayerError
    from fullgraph.nn.convert import convert as convert
    from fullgraph.nn.sign import sign as sign
    from fullgraph.ops.aggregate import aggregate as aggregate
    from fullgraph.ops.gradients import broadcast_parameters as broadcast_parameters
    from fullgraph.ops.gradients import sum_gradients as sum_gradients
    from fullgraph.ops.reduce import cross_entropy as cross_entropy
    from fullgraph.ops.reduce import global_mean as global_mean
    from fullgraph.ops.reduce import replicated as replicated
    from fullgraph.ops.reduce import sum_over_ranks as sum_over_ranks
    from fullgraph.training.fit import fit as fit
    from fullgraph.training.metrics import accuracy as accuracy
    from fullgraph.training.metrics import f1 as f1
    from fullgraph.training.metrics import roc_auc as roc_auc
    from fullgraph.training.options import FitOptions as FitOptions
    from fullgraph.training.profile import Profile as Profile

__version__ = "0.1.0"

_HOME = {
    "comm.distributed": "DistributedGraph",
    "comm.group": "CommError Group init",
    "comm.hetero": "DistributedHeteroGraph",
    "comm.load": "LoadError load",
    "comm.schedule": "Schedule delayed local oneshot sequential",
    "comm.seeds": "SeedGraphs",
    "nn.convert": "UnsupportedLayerError convert",
    "nn.sign": "sign",
    "ops.aggregate": "aggregate",
    "ops.gradients": "broadcast_parameters sum_gradients",
    "ops.reduce": "cross_entropy global_mean replicated sum_over_ranks",
    "training.fit": "fit",
    "training.metrics": "accuracy f1 roc_auc",
    "training.options": "FitOptions",
    "training.profile": "Profile",
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names.split()}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'fullgraph' has no attribute {name!r}")
    return getattr(importlib.import_module(f"fullgraph.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
