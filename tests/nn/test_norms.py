"""PyG's norms on shared rows: the statistics are those of all nodes, and so are the gradients."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor, nn

import fullgraph
from fullgraph.comm.distributed import DistributedGraph
from fullgraph.comm.group import Group
from tests.contract import Case, Setting, assert_same, check_contract
from tests.graphs import multigraph, named, named_parts, partitioned
from tests.ranks import run_ranks
from tests.test_contract import TwoConvs


class Normed(nn.Module):
    """A conv, a norm with parameters that are not at their start, a conv."""

    def __init__(self, features: int, classes: int, norm: nn.Module) -> None:
        super().__init__()
        self.conv1, self.norm = pyg.SAGEConv(features, 6), norm
        self.conv2 = pyg.SAGEConv(6, classes)
        for parameter in norm.parameters():
            nn.init.uniform_(parameter, 0.5, 1.5)

    def forward(self, x: Tensor, edge_index: object) -> Tensor:
        return self.conv2(F.elu(self.normed(self.conv1(x, edge_index))), edge_index)

    def normed(self, x: Tensor) -> Tensor:
        return self.norm(x)


class FarFromZero(Normed):
    """The norm's input has a mean that is large for its spread."""

    def normed(self, x: Tensor) -> Tensor:
        return self.norm(x + 1000.0)


class WithMessages(Normed):
    """x and a message for each row, as MessageNorm takes them."""

    def normed(self, x: Tensor) -> Tensor:
        return x + self.norm(x, torch.tanh(x))


class WithTypes(Normed):
    """Four types by the sign of two of a row's values; the last one never occurs."""

    def normed(self, x: Tensor) -> Tensor:
        types = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
        return self.norm(x, types)


class Single(nn.Module):
    """The norm on its own, after the one aggregation that brings in the graph."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm, self.conv = norm, pyg.GraphConv(6, 6)

    def forward(self, x: Tensor, edge_index: object, **kwargs: object) -> Tensor:
        return self.norm(self.conv(x, edge_index), **kwargs)


def normed(kind, *args, model=Normed, **kwargs) -> Case:
    return Case(lambda f, c: model(f, c, kind(*args, **kwargs)))


CASES = {
    "graph_norm": normed(pyg.GraphNorm, 6),
    "pair_norm": normed(pyg.PairNorm, scale=1.5),
    "pair_norm_individually": normed(pyg.PairNorm, scale_individually=True),
    "layer_norm_graph": normed(pyg.LayerNorm, 6),
    "layer_norm_graph_plain": normed(pyg.LayerNorm, 6, affine=False),
    "instance_norm": normed(pyg.InstanceNorm, 6),
    "instance_norm_tracked": normed(pyg.InstanceNorm, 6, affine=True, track_running_stats=True),
    "mean_subtraction": normed(pyg.MeanSubtractionNorm),
    "diff_group_norm": normed(pyg.DiffGroupNorm, 6, groups=3, lamda=0.5),
    "message_norm": normed(pyg.MessageNorm, learn_scale=True, model=WithMessages),
    "graph_size_norm": normed(pyg.GraphSizeNorm),
    "batch_norm": normed(pyg.BatchNorm, 6, allow_single_element=True),
    "hetero_batch_norm": normed(pyg.HeteroBatchNorm, 6, 4, model=WithTypes),
    "hetero_batch_norm_average": normed(pyg.HeteroBatchNorm, 6, 4, momentum=None, affine=False,
                                        model=WithTypes),
    "hetero_batch_norm_untracked": normed(pyg.HeteroBatchNorm, 6, 4, track_running_stats=False,
                                          model=WithTypes),
    "hetero_layer_norm": normed(pyg.HeteroLayerNorm, 6, 4, model=WithTypes),
}  # fmt: skip

NORM_OF_THE_MODELS = [
    "graph_norm", "pair_norm", "layer_norm", "instance_norm", "mean_subtraction_norm",
    "diff_group_norm", "graph_size_norm", "batch_norm",
]  # fmt: skip


def _settings(size: int) -> list[Setting]:
    return [Setting("sequential", 200, max(size, 4)), Setting("oneshot", 200, 5, True)]


def _check_all(group: Group) -> None:
    for name, case in CASES.items():
        for graph in ("multigraph", "tiny", "no_edges"):
            try:
                check_contract(group, case, graph, _settings(group.size))
            except AssertionError as error:
                raise AssertionError(f"{name} on {error}") from None


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_norms_equal_pyg_in_one_process(size: int) -> None:
    run_ranks(_check_all, size)
