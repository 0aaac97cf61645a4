"""`fit`: train a model on the whole graph, all ranks together, and keep the weights that are best.

A step exchanges the rows that layers need, the loss, and the gradients, nothing else. After it,
where the epoch is evaluated, come a forward pass without gradients, its metrics, and one small
all-reduce with every rank's account of memory and bytes.

Letters: n owned rows, F features, C classes, W ranks.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from os import PathLike
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn.conv import MessagePassing
from torch_geometric.nn.dense.linear import Linear

from fullgraph.comm.distributed import DistributedGraph
from fullgraph.nn.convert import convert
from fullgraph.ops.gradients import broadcast_parameters, sum_gradients
from fullgraph.ops.reduce import cross_entropy
from fullgraph.training.config import approximations
from fullgraph.training.drift import DriftCheck
from fullgraph.training.interrupts import stopping
from fullgraph.training.memory import PeakMemory
from fullgraph.training.metrics import METRICS
from fullgraph.training.models import run_model
from fullgraph.training.options import FitOptions, check_graph
from fullgraph.training.profile import Profile
from fullgraph.training.results import Epoch, FitResult
from fullgraph.training.resume import RunCheckpoints

Forward = Callable[[torch.nn.Module, DistributedGraph], Tensor]


def fit(
    model: torch.nn.Module, graph: DistributedGraph, options: FitOptions | None = None, *,
    on_epoch: Callable[[Epoch], None] | None = None, forward: Forward = run_model,
    checkpoints: str | PathLike[str] | None = None, resume: bool = False,
    on_start: Callable[[FitResult], None] | None = None,
    on_checkpoint: Callable[[int], None] | None = None, profile: Profile | None = None,
    **changes: Any,
) -> FitResult:  # fmt: skip
    """Train with Adam on the cross-entropy of the training rows. Every rank calls it.

    The model is converted in place, rank 0's weights are broadcast, and at the end the model holds
    the weights of `FitResult.tested`. KeyboardInterrupt (Ctrl-C) ends training and returns what
    there is, with ``interrupted`` set; it exchanges nothing any more, as ranks are interrupted at
    different places.

    Args:
        model: a PyG or torch model, converted or not; called as `forward` says.
        graph: needs x, y [n] of classes, and a training mask with a labelled row on some rank.
        options: see `FitOptions`; `changes` replace single ones, as in ``fit(..., epochs=50)``.
        on_epoch: called on every rank after each epoch.
        forward: gives logits [n, C]; by default `run_model`, that is ``model(graph.x, graph)``.
        checkpoints: the folder of checkpoints, which ``options.checkpoint_every`` asks for; only
            rank 0 touches it. After the last epoch, and an interrupt, one more is left.
        resume: go on from the newest checkpoint in that folder; from the beginning if there is
            none. What was then and is now may differ in epochs, checkpoints, drift checks,
            schedule, placement, wire, partition and number of ranks; all else is refused.
        on_start: called on every rank before the first epoch, with what was resumed.
        on_checkpoint: called after a checkpoint was saved, with the last epoch in it: on every
            rank, and of an interrupt on rank 0.
        profile: of the training steps (not of evaluations); epochs with a drift check are left out.

    Raises:
        ValueError: an option or the graph does not fit; names it.
        CheckpointError: a checkpoint cannot be written, or not be resumed from; says why.
    """
    options = dataclasses.replace(options or FitOptions(), **changes)
    options.validate()
    check_graph(graph.meta, options)
    convert(model, seed=options.seed)
    broadcast_parameters(model, graph.group)
    vars(model)["parameters_checked"] = True  # as they have just been made the same
    run = Run(model, graph, options, forward, profile)
    result = run.result
    kept = RunCheckpoints(run, checkpoints, resume, on_checkpoint)
    if on_start is not None:
        on_start(result)
    try:
        with nullcontext() if profile is None else profile:
            for epoch in run.epochs():
                kept.note(epoch)
                if on_epoch is not None:
                    on_epoch(epoch)
                kept.save_if(epoch.epoch % max(1, options.checkpoint_every) == 0)
        kept.save_if(True)
    except KeyboardInterrupt:
        stopping()
        result.interrupted = True
        kept.save_alone()
    weights, result.tested = run.kept
    model.load_state_dict(weights)
    return result


def normalize_features(x: Tensor) -> Tensor:
    """Rows divided by the sum of their absolute values; rows of zeros stay. x: [n, F]."""
    return x / x.abs().sum(dim=1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)


def evaluate(
    model: torch.nn.Module, graph: DistributedGraph, metric: str, forward: Forward = run_model
) -> dict[str, float]:
    """The metric of every split that the graph has, nan for one that is empty; no gradients."""
    assert graph.y is not None
    model.eval()
    with torch.no_grad():
        out = forward(model, graph)
        return {
            name: METRICS[metric](out, graph.y, mask, group=graph.group)
            for name, mask in graph.masks.items()
        }


class Run:
    """One training run: the optimizer, what was measured so far, and the weights to keep.

    ``kept`` is the state_dict after an evaluated epoch, with that epoch; None before the first. It
    is replaced as one, so an interrupt cannot leave weights of a step half done.
    """

    def __init__(
        self, model: torch.nn.Module, graph: DistributedGraph, options: FitOptions,
        forward: Forward, profile: Profile | None = None,
    ) -> None:  # fmt: skip
        self.model, self.graph, self.options, self.forward = model, graph, options, forward
        self.profile = profile
        now = approximations(graph.schedule, graph.wire)
        self.result = FitResult(metric=options.metric, approximate=[now] if now else [])
        self.optimizer = torch.optim.Adam(parameter_groups(model, options), lr=options.lr)
        self.kept: tuple[dict[str, Any], Epoch | None] = (_copy(model), None)
        self.memory = PeakMemory()
        self.by_validation = options.keep == "best" and "val" in graph.masks

    def epochs(self) -> Iterator[Epoch]:
        options, result = self.options, self.result
        number = len(result.epochs)
        while number < options.epochs and not self._is_out_of_patience(number):
            number += 1
            epoch = self._train(number)
            due = number % options.eval_every == 0 or number == options.epochs
            if due:
                self._evaluate(epoch)
                self._keep(epoch)
            result.epochs.append(epoch)
            yield epoch
        result.stopped_early = self._is_out_of_patience(number)

    def _is_out_of_patience(self, number: int) -> bool:
        best, patience = self.result.best, self.options.patience
        return bool(patience and best and number - best.epoch >= patience)

    def _train(self, number: int) -> Epoch:
        graph, model, every = self.graph, self.model, self.options.check_drift
        model.train()
        check = DriftCheck(model, graph) if every and number % every == 0 else None
        profile = self.profile if check is None else None
        with nullcontext() if profile is None else profile.step():
            sent, start = graph.traffic.bytes_sent, time.perf_counter()
            self.optimizer.zero_grad()
            out, loss = self._backward(model, graph, keep=check is not None)
            seconds = time.perf_counter() - start
            epoch = Epoch(number, loss.item(), 0.0, own_bytes_sent=graph.traffic.bytes_sent - sent)
            if check is not None:
                assert out is not None
                epoch.drift = check.measure(model, out, self._output_of_step)
            start = time.perf_counter()
            self.optimizer.step()
            epoch.seconds = seconds + time.perf_counter() - start
        return epoch

    def _output_of_step(self, model: torch.nn.Module, graph: DistributedGraph) -> Tensor:
        out, _ = self._backward(model, graph, keep=True)
        assert out is not None
        return out

    def _backward(
        self, model: torch.nn.Module, graph: DistributedGraph, keep: bool
    ) -> tuple[Tensor | None, Tensor]:
        """Output, if it is to be kept, and loss of a step; its gradients are on the parameters, of
        all ranks."""
        out = self.forward(model, graph)
        assert graph.y is not None
        loss = cross_entropy(out, graph.y, graph.masks.get("train"), group=graph.group)
        kept = out if keep else None
        del out
        loss.backward()
        sum_gradients(model, graph.group)
        return kept, loss

    def _evaluate(self, epoch: Epoch) -> None:
        start = time.perf_counter()
        epoch.metrics = evaluate(self.model, self.graph, self.options.metric, self.forward)
        epoch.evaluation_seconds = time.perf_counter() - start
        # Exact up to 2**53 bytes. A row a rank, of which the others are zero.
        group = self.graph.group
        account = torch.zeros(group.size, 2, dtype=torch.float64)
        account[group.rank, 0] = self.memory.bytes()
        account[group.rank, 1] = epoch.own_bytes_sent
        rows = group.all_reduce(account, "the account of memory and bytes").tolist()
        epoch.peak_memory_bytes = [int(row[0]) for row in rows]
        epoch.bytes_sent = [int(row[1]) for row in rows]

    def _keep(self, epoch: Epoch) -> None:
        """Remember these weights if they are the ones to test so far; ties go to the earlier."""
        result = self.result
        value = epoch.metrics.get("val", math.nan)
        best = result.best.metrics["val"] if result.best else -math.inf
        if value > best:  # never where it is nan
            result.best = epoch
        if not self.by_validation or result.best in (epoch, None):
            self.kept = (_copy(self.model), epoch)


def _copy(model: torch.nn.Module) -> dict[str, Any]:
    return {
        name: value.detach().clone() if isinstance(value, Tensor) else value
        for name, value in model.state_dict().items()
    }


def parameter_groups(model: torch.nn.Module, options: FitOptions) -> list[dict[str, Any]]:
    """Parameters with their weight decay: all of them, or the first layer's only.

    The first layer is the first message-passing or linear module, in the order in which the model
    was put together, with all its parameters.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    if options.weight_decay_on == "all":
        return [{"params": parameters, "weight_decay": options.weight_decay}]
    layers = (MessagePassing, Linear, torch.nn.Linear)
    first = next((m for m in model.modules() if isinstance(m, layers)), None)
    if first is None:
        raise ValueError("weight_decay_on='first': the model has no layer that is known as one")
    chosen = {id(p) for p in first.parameters()}
    return [
        {
            "params": [p for p in parameters if id(p) in chosen],
            "weight_decay": options.weight_decay,
        },
        {"params": [p for p in parameters if id(p) not in chosen], "weight_decay": 0.0},
    ]
