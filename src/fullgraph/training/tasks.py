"""What workers do: `train` and `predict`, each called on every rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fullgraph.comm.distributed import DistributedGraph
from fullgraph.comm.group import Group
from fullgraph.comm.load import load
from fullgraph.graph.folder import PartitionedFolder
from fullgraph.graph.replace import replacing
from fullgraph.nn.convert import convert
from fullgraph.training.board import Board
from fullgraph.training.config import RunConfig
from fullgraph.training.curves import draw_curves
from fullgraph.training.events import Log
from fullgraph.training.fit import fit, normalize_features
from fullgraph.training.metrics import METRICS
from fullgraph.training.models import build_model, run_model
from fullgraph.training.options import check_graph, check_untyped
from fullgraph.training.profile import Profile
from fullgraph.training.progress import TrainingProgress
from fullgraph.training.results import Epoch, FitResult
from fullgraph.training.run_folder import CURVES, RunFolder


def train(
    group: Group, config: dict[str, Any], out: str, graph: str | None = None, quiet: bool = False,
    resume: bool = False, log_json: bool = False, tensorboard: bool = False,
) -> bool:  # fmt: skip
    """Train as `config` (of a `RunConfig`) says; rank 0 fills the run folder `out`. Whether it was
    interrupted.

    graph: a partitioned folder; without one, `config` names a source, which rank 0 partitions.
    quiet, log_json: of rank 0's `Log`. tensorboard: write curves for it, too.
    resume: go on from the last checkpoint in `out`, if there is one.
    """
    options = RunConfig.from_json(config)
    data = open_graph(group, options, graph)
    check_graph(data.meta, options.training)
    folder = RunFolder(out) if group.rank == 0 else None
    log = Log(group.rank, quiet, log_json) if folder is not None else Log(quiet=True)
    boards: list[Board] = []
    torch.manual_seed(options.training.seed)
    model = build_model(options.model, data.num_features, data.num_classes)
    profile = None
    if options.profile:
        profile = Profile(data, RunFolder(out).profile, epochs=options.profile)
    with TrainingProgress(options.training.epochs, options.training.metric, log) as progress:

        def on_start(result: FitResult) -> None:
            check_exact(options, result)
            if folder is not None:
                done = len(result.epochs)
                folder.begin({**config, "data": sizes(data)}, [e.to_json() for e in result.epochs])
                if done:
                    log("resume", f"going on after epoch {done}", epoch=done)
                if tensorboard:
                    boards.append(Board(folder.tensorboard, options.training.metric, done))

        def on_epoch(epoch: Epoch) -> None:
            if folder is not None:
                folder.add_metrics(epoch.to_json())
                progress.show(epoch)
                for board in boards:
                    board.add(epoch)

        result = fit(
            model, data, options.training, on_epoch=on_epoch, on_start=on_start,
            checkpoints=RunFolder(out).checkpoints, resume=resume, profile=profile,
            on_checkpoint=lambda n: log("checkpoint", f"checkpoint after epoch {n}", epoch=n),
        )  # fmt: skip
    for board in boards:
        board.close()
    traffic = None if result.interrupted else _traffic(data)
    if folder is not None:
        finish(folder, model, options, result, data, traffic)
    return result.interrupted


def check_exact(config: RunConfig, result: FitResult) -> None:
    """Raises ValueError where exact training was asked for, and epochs before a resume were not."""
    if config.exact and result.approximate:
        raise ValueError(
            f"--exact was given, and the epochs to resume from were trained with "
            f"{', '.join(result.approximate)}; start a run of its own"
        )


def finish(
    folder: RunFolder, model: torch.nn.Module, config: RunConfig, result: FitResult,
    graph: DistributedGraph, traffic: list[Any] | None,
) -> None:  # fmt: skip
    """Write what remains of a run folder: weights, picture, and last of all the result."""
    approximate = ", ".join(result.approximate)
    if result.tested is not None:
        folder.write_weights(model.state_dict())
    summary = {
        "status": "interrupted" if result.interrupted else "finished",
        "graph": graph.meta.name,
        "workers": graph.group.size,
        "parts": graph.meta.num_parts,
        "placement": str(graph.placement),
        "schedule": str(graph.schedule),
        "wire": graph.wire,
        "exact": not approximate,
        "approximate": approximate or None,
        "model": config.model.name,
        "parameters": sum(p.numel() for p in model.parameters()),
        "seed": config.training.seed,
        **result.to_json(),
        "traffic": traffic,
    }
    title = f"{config.model.name} on {graph.meta.name}, {graph.group.size} worker(s)"
    if approximate:
        title += f", approximate: {approximate}"
    tested = summary["tested_epoch"]
    draw_curves(folder.path / CURVES, folder.metrics(), result.metric, title, tested)
    folder.write_result(summary)


def predict(
    group: Group, config: dict[str, Any], run: str, out: str, graph: str | None = None
) -> None:
    """Logits of every node, with the weights of the run folder `run`; rank 0 writes `out`.

    `out` is an .npz of logits [N, C], pred int64 [N] and, where the graph has labels and splits,
    the metric of each under its name ("train", "val", "test").
    """
    options = RunConfig.from_json(config)
    data = open_graph(group, options, graph)
    classes = config["data"]["num_classes"]
    model = build_model(options.model, config["data"]["num_features"], classes)
    model.load_state_dict(RunFolder(run).weights())
    convert(model).eval()
    with torch.no_grad():
        logits = run_model(model, data)
        metrics = {
            name: METRICS[options.training.metric](logits, data.y, mask, group=group)
            for name, mask in data.masks.items()
            if data.y is not None and data.y.dim() == 1 and data.num_classes <= classes
        }
        rows = data.gather(logits)
    if rows is not None:
        arrays: dict[str, Any] = {"logits": rows.numpy(), "pred": rows.argmax(dim=1).numpy()}
        needed = sum(array.nbytes for array in arrays.values())
        with replacing(Path(out), needed) as file:
            np.savez(file, **{**arrays, **metrics})


def open_graph(group: Group, config: RunConfig, folder: str | None) -> DistributedGraph:
    """This rank's share; its features normalised where the run says so."""
    source = config.graph
    if folder is not None:
        opened = PartitionedFolder.open(folder)
        check_untyped(opened.meta)
        graph = DistributedGraph.build(
            opened, group, config.schedule, placement=config.placement, wire=config.wire
        )
    else:
        options: dict[str, Any] = {}
        if not Path(source.source).is_dir():
            options = {"parts": source.parts, "method": source.method, "split": source.split}
        options |= {
            "schedule": config.schedule, "placement": config.placement, "wire": config.wire,
        }  # fmt: skip
        graph = load(source.source, group=group, **options)
        check_untyped(graph.meta)
    if source.normalize_features and graph.x is not None:
        graph.x = normalize_features(graph.x)
    return graph


def sizes(graph: DistributedGraph) -> dict[str, Any]:
    """What a run's config.json says of its graph."""
    names = ("name", "num_nodes", "num_edges", "num_features", "num_classes", "num_parts",
             "fingerprint")  # fmt: skip
    return {name: getattr(graph.meta, name) for name in names}


def _traffic(graph: DistributedGraph) -> list[list[dict[str, Any]]]:
    """Every rank's account of the whole run: bytes by layer, direction and peer."""
    rows = [
        {**flow._asdict(), "sent": sent, "received": received}
        for flow, sent, received in graph.traffic.rows()
    ]
    data = torch.tensor(list(json.dumps(rows).encode()), dtype=torch.uint8)
    pieces = graph.group.all_gather(data, "the account of traffic")
    return [json.loads(bytes(piece.tolist())) for piece in pieces]
