"""Train any PyG model on the whole graph, exactly, on as many workers as it takes."""

from fullgraph.comm.distributed import DistributedGraph
from fullgraph.comm.group import CommError, Group, init
from fullgraph.comm.load import LoadError, load
from fullgraph.comm.schedule import Schedule, oneshot, sequential
from fullgraph.nn.convert import UnsupportedLayerError, convert
from fullgraph.ops.aggregate import aggregate
from fullgraph.ops.gradients import broadcast_parameters, sum_gradients
from fullgraph.ops.reduce import cross_entropy, global_mean, replicated, sum_over_ranks

__all__ = [
    "CommError",
    "DistributedGraph",
    "Group",
    "LoadError",
    "Schedule",
    "UnsupportedLayerError",
    "aggregate",
    "broadcast_parameters",
    "convert",
    "cross_entropy",
    "global_mean",
    "init",
    "load",
    "oneshot",
    "replicated",
    "sequential",
    "sum_gradients",
    "sum_over_ranks",
]
__version__ = "0.1.0"
