"""`fullgraph predict`: exact inference on the whole graph, with the weights of a run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fullgraph.cli.console import Stages, errors_in_a_line, fail_for_worker, leave_interrupted

if TYPE_CHECKING:
    from fullgraph.graph.parts import GraphMeta


def predict(
    run: Annotated[Path, typer.Argument(help="A run folder that fullgraph train left.")],
    out: Annotated[Path, typer.Option(
        help="The .npz to write: logits [N, C] and pred [N], in the original order of the nodes.")
    ] = Path("predictions.npz"),
    graph: Annotated[str | None, typer.Option(
        help="Another graph than the run's, with features of the same kind.")] = None,
    workers: Annotated[int, typer.Option(help="Processes to share the work.")] = 1,
    threads: Annotated[int | None, typer.Option(
        help="Of each worker; an equal share of the cores unless given.")] = None,
    timeout: Annotated[float, typer.Option(
        help="The longest any wait between workers may take, in seconds.")] = 300.0,
) -> None:  # fmt: skip
    """Predict every node of a graph, on the whole graph, without gradients."""
    with errors_in_a_line():
        if out.suffix != ".npz":
            raise ValueError(f"--out must end in .npz, got {out}")
        if not out.absolute().parent.is_dir():
            raise ValueError(f"--out: there is no folder {out.parent}")
        _predict(run, out, graph, workers, threads, timeout)
    print(f"predictions: {out}")


def _predict(
    run: Path, out: Path, graph: str | None, workers: int, threads: int | None, timeout: float
) -> None:
    from fullgraph.graph.disk import check_writable
    from fullgraph.training.config import GraphOptions
    from fullgraph.training.launch import WorkerError, default_threads, run_workers
    from fullgraph.training.models import check_weights
    from fullgraph.training.prepare import partitioned_folder
    from fullgraph.training.run_folder import RunFolder, RunFolderError

    folder = RunFolder(run)
    content = folder.config()
    weights = folder.weights()
    config, (num_features, num_classes) = folder.run_config(), folder.sizes()
    try:
        check_weights(config.model, num_features, num_classes, weights)
    except ValueError as error:
        raise RunFolderError(f"{run} is damaged: {error}") from error
    if config.approximate:
        print(f"trained approximately ({config.approximate}); predictions are exact")
        config = dataclasses.replace(config, schedule="sequential", wire="float32")
    # Predictions are the same wherever edges live, and on any number of workers.
    config = dataclasses.replace(config, placement=None)
    source = dataclasses.replace(config.graph, parts=None, method=None)
    if graph is not None:
        normalized = config.graph.normalize_features
        source = GraphOptions(graph, normalize_features=normalized)
    threads = default_threads(max(1, workers)) if threads is None else threads
    config = dataclasses.replace(
        config, graph=source, workers=workers, threads=threads, timeout=timeout
    )
    config.validate()
    check_writable(out.parent)
    with partitioned_folder(source, workers, Stages()) as opened:
        _check_fits(num_features, opened.meta)
        arguments = {
            "config": {**content, **config.to_json()}, "run": str(run.absolute()),
            "out": str(out.absolute()), "graph": str(opened.path.absolute()),
        }  # fmt: skip
        try:
            run_workers("fullgraph.training.tasks:predict", arguments, workers, threads, timeout)
        except WorkerError as error:
            fail_for_worker(error)
        except KeyboardInterrupt:
            leave_interrupted()


def _check_fits(num_features: int, meta: GraphMeta) -> None:
    from fullgraph.training.options import check_untyped

    check_untyped(meta)
    if meta.field("x") is None or meta.num_features != num_features:
        raise ValueError(
            f"graph {meta.name!r} has {meta.num_features} features a node; this run's model "
            f"takes {num_features}"
        )
