"""What a training run is asked to do, `FitOptions`, and the graphs that it takes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fullgraph.graph.parts import GraphMeta
from fullgraph.training.metrics import METRICS


@dataclass(frozen=True)
class FitOptions:
    """Options of `fit`.

    Attributes:
        epochs: steps, each on the whole graph.
        lr, weight_decay: of Adam.
        weight_decay_on: "all" parameters, or those of the "first" layer, as the GCN paper has it.
        patience: stop after so many epochs without a better validation metric; 0: never.
        seed: of the dropout masks. The weights a model starts with are the caller's to seed.
        metric: one of `METRICS`.
        eval_every: evaluate every so many epochs, and after the last.
        keep: the weights to end with, and to test: of the evaluated epoch with the "best"
            validation metric (the earliest of equals; the last where there is no validation
            mask), or of the "last".
        check_drift: every so many epochs, compare outputs and gradients with those of an exact
            schedule on the same weights (see `training.drift`); 0: never.
        checkpoint_every: save a checkpoint every so many epochs, and after the last; 0: never.
        keep_checkpoints: how many of them to keep.
    """

    epochs: int = 200
    lr: float = 0.01
    weight_decay: float = 0.0
    weight_decay_on: str = "all"
    patience: int = 0
    seed: int = 0
    metric: str = "accuracy"
    eval_every: int = 1
    keep: str = "best"
    check_drift: int = 0
    checkpoint_every: int = 0
    keep_checkpoints: int = 2

    def validate(self) -> None:
        """Raises ValueError naming the option."""
        for key, low in (
            ("epochs", 1),
            ("eval_every", 1),
            ("patience", 0),
            ("seed", 0),
            ("check_drift", 0),
            ("checkpoint_every", 0),
            ("keep_checkpoints", 1),
        ):
            if getattr(self, key) < low:
                raise ValueError(f"{key} must be at least {low}, got {getattr(self, key)}")
        if not (self.lr > 0 and math.isfinite(self.lr)):
            raise ValueError(f"lr must be positive, got {self.lr}")
        if not (self.weight_decay >= 0 and math.isfinite(self.weight_decay)):
            raise ValueError(f"weight_decay must be 0 or more, got {self.weight_decay}")
        for key, choices in (
            ("weight_decay_on", ("all", "first")),
            ("keep", ("best", "last")),
            ("metric", tuple(METRICS)),
        ):
            if getattr(self, key) not in choices:
                raise ValueError(
                    f"{key} must be one of {', '.join(choices)}, got {getattr(self, key)!r}"
                )


def check_graph(meta: GraphMeta, options: FitOptions) -> None:
    """Raises ValueError where `fit` cannot train on this graph, with the reason."""
    check_untyped(meta)
    x, y = meta.field("x"), meta.field("y")
    if x is None or meta.num_features == 0:
        raise ValueError(f"graph {meta.name!r} has no node features x, which training needs")
    if y is None or y.dtype != "int64" or y.shape:
        raise ValueError(
            f"graph {meta.name!r} needs labels y of shape [N], one class a node, "
            f"{'and has none' if y is None else f'got {y.dtype} [N, ...]'}"
        )
    if not sum(meta.part_labelled):
        raise ValueError(f"graph {meta.name!r} has no training node: its training set is empty")
    if options.metric == "roc_auc" and meta.num_classes != 2:
        raise ValueError(f"metric roc_auc takes 2 classes; the graph has {meta.num_classes}")
    if options.patience and "val" not in meta.mask_names:
        raise ValueError(f"patience={options.patience} needs a validation mask, and there is none")


def check_untyped(meta: GraphMeta) -> None:
    """Raises ValueError for a graph whose nodes have types: each has features of its own."""
    if meta.node_types:
        names = ", ".join(repr(node_type.name) for node_type in meta.node_types)
        raise ValueError(
            f"graph {meta.name!r} has types of nodes ({names}), which the commands and "
            "fullgraph.fit do not train on; train from Python: fullgraph.load gives a "
            "DistributedHeteroGraph, and fullgraph.convert a model of its x_dict and "
            "edge_index_dict"
        )
