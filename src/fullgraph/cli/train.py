"""`fullgraph train`: train a named model on a graph, and leave a run folder."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fullgraph.cli.console import Stages, errors_in_a_line, fail_for_worker, leave_interrupted

if TYPE_CHECKING:
    from fullgraph.training.config import RunConfig
    from fullgraph.training.run_folder import RunFolder

MODELS = "gcn, sage, gin, gat, graphconv, sgc, appnp or mlp"

NOT_OF_THE_RUN = ("out", "overwrite", "as_json", "resume", "max_restarts")


def train(
    graph: Annotated[str, typer.Argument(
        help="A partitioned folder, an .npz, or pyg:Cora, ogb:ogbn-arxiv, planted:nodes=1e5,...")],
    model: Annotated[str, typer.Option(help=f"One of {MODELS}.")] = "sage",
    layers: Annotated[int, typer.Option(help="Layers of the model.")] = 2,
    hidden: Annotated[int, typer.Option(help="Columns between layers.")] = 64,
    heads: Annotated[int, typer.Option(help="Of gat.")] = 4,
    dropout: Annotated[float, typer.Option(help="Before every layer but the first.")] = 0.5,
    input_dropout: Annotated[float, typer.Option(help="On the input features.")] = 0.0,
    norm: Annotated[str, typer.Option(help="Between layers: none, batch or layer.")] = "none",
    lr: Annotated[float, typer.Option(help="Learning rate of Adam.")] = 0.01,
    weight_decay: Annotated[float, typer.Option(help="Weight decay of Adam.")] = 0.0,
    weight_decay_on: Annotated[str, typer.Option(
        help="'all' parameters, or those of the 'first' layer only, as the GCN paper has it.")
    ] = "all",
    epochs: Annotated[int, typer.Option(help="Steps, each on the whole graph.")] = 200,
    patience: Annotated[int, typer.Option(
        help="Stop after so many epochs without a better validation metric; 0: never.")] = 0,
    keep: Annotated[str, typer.Option(
        help="The weights to test: of the 'best' validation metric, or the 'last'.")] = "best",
    metric: Annotated[str, typer.Option(
        help="accuracy, f1_micro, f1_macro, or roc_auc (2 classes).")] = "accuracy",
    eval_every: Annotated[int, typer.Option(help="Evaluate every so many epochs.")] = 1,
    normalize_features: Annotated[bool, typer.Option(
        "--normalize-features", help="Divide each row of features by its sum.")] = False,
    split: Annotated[int, typer.Option(help="Which split, where there are several.")] = 0,
    seed: Annotated[int, typer.Option(help="Of initial weights and dropout.")] = 0,
    workers: Annotated[int | None, typer.Option(
        help="Processes to train with; 1 unless given. Under torchrun, its number.")] = None,
    parts: Annotated[int | None, typer.Option(
        help="Parts to make of the graph; one a worker unless given.")] = None,
    method: Annotated[str | None, typer.Option(
        help="Partitioning: metis, random (unless given, of a grid), contiguous; of a vertex cut, "
        "libra.")] = None,
    placement: Annotated[str | None, typer.Option(
        help="Where edges live: destination, vertex-cut or grid:RxCxK, with R·C·K workers; auto: "
        "what `fullgraph plan` finds fastest on this machine. Unless given, as the folder was "
        "partitioned for, or destination.")] = None,
    schedule: Annotated[str, typer.Option(
        help="sequential[:prefetch=N,remat=on|off] or oneshot; approximate: delayed:R, where "
        "remote rows travel once in R epochs and are stale in between, or local, without them.")
    ] = "sequential",
    wire: Annotated[str, typer.Option(
        help="What rows travel in: float32, their own dtype, or bf16, approximate and half as big.")
    ] = "float32",
    exact: Annotated[bool, typer.Option(
        "--exact", help="Refuse a schedule or wire that is approximate.")] = False,
    check_drift: Annotated[int, typer.Option(
        help="Every so many epochs, print the relative error of outputs and gradients against an "
        "exact schedule; 0: never.")] = 0,
    checkpoint_every: Annotated[int, typer.Option(
        help="Save a checkpoint every so many epochs, after the last, and on Ctrl-C; 0: never, or, "
        "of a run that is resumed, as before.")] = 0,
    keep_checkpoints: Annotated[int, typer.Option(help="How many checkpoints to keep.")] = 2,
    resume: Annotated[bool, typer.Option(
        "--resume", help="Go on from the last checkpoint in --out; from the beginning if there is "
        "none yet.")] = False,
    max_restarts: Annotated[int, typer.Option(
        help="How often to bring all workers back from the last checkpoint after one failed.")] = 0,
    threads: Annotated[int | None, typer.Option(
        help="Of each worker; an equal share of the cores unless given.")] = None,
    timeout: Annotated[float, typer.Option(
        help="The longest any wait between workers may take, in seconds.")] = 300.0,
    out: Annotated[Path | None, typer.Option(
        help="The run folder; runs/MODEL-GRAPH-TIME unless given.")] = None,
    overwrite: Annotated[bool, typer.Option(
        "--overwrite", help="Replace a run folder that is there.")] = False,
    as_json: Annotated[bool, typer.Option(
        "--json", help="Print the result as JSON, as the last line; nothing else.")] = False,
) -> None:  # fmt: skip
    """Train a model on the whole graph with any number of workers: exactly, unless told not to."""
    options = {k: v for k, v in locals().items() if k not in NOT_OF_THE_RUN}
    with errors_in_a_line():
        config = _config(**options)
        config = _placed(config, as_json) if placement == "auto" else config
        config.validate()
        _check_restarts(resume, max_restarts, overwrite, out)
        out = _default_out(config) if out is None else out
        if "WORLD_SIZE" in os.environ:
            is_first = _train_here(config, out, overwrite, as_json, resume)
        else:
            is_first = True
            _train_with_workers(config, out, overwrite, as_json, resume, max_restarts)
        if is_first:
            _say_result(out, as_json)


def _check_restarts(resume: bool, max_restarts: int, overwrite: bool, out: Path | None) -> None:
    if resume and overwrite:
        raise ValueError("--resume goes on with what --overwrite removes; give one of them")
    if resume and out is None:
        raise ValueError("--resume needs --out, the run folder to go on with")
    if max_restarts < 0:
        raise ValueError(f"max_restarts must be at least 0, got {max_restarts}")
    if max_restarts and "WORLD_SIZE" in os.environ:
        raise ValueError(
            f"--max-restarts {max_restarts}, but the workers are torchrun's to restart: give it "
            "torchrun --max-restarts, and add --resume here"
        )


def _config(
    graph: str, split: int, parts: int | None, method: str | None, normalize_features: bool,
    model: str, layers: int, hidden: int, heads: int, dropout: float, input_dropout: float,
    norm: str, workers: int | None, threads: int | None, schedule: str, placement: str | None,
    wire: str, exact: bool, timeout: float, **training: Any,
) -> RunConfig:  # fmt: skip
    from fullgraph.training.config import GraphOptions, RunConfig
    from fullgraph.training.launch import default_threads
    from fullgraph.training.models import ModelOptions
    from fullgraph.training.options import FitOptions

    workers = _num_workers(workers)
    # Found again by `fullgraph predict` from another folder.
    source = (
        str(Path(graph).expanduser().absolute()) if Path(graph).expanduser().exists() else graph
    )
    return RunConfig(
        graph=GraphOptions(source, split, parts, method, normalize_features),
        model=ModelOptions(model, layers, hidden, dropout, input_dropout, norm, heads),
        training=FitOptions(**training),
        workers=workers,
        threads=threads if threads is not None else default_threads(max(1, workers)),
        schedule=schedule,
        placement=placement,
        wire=wire,
        exact=exact,
        timeout=timeout,
    )


def _placed(config: RunConfig, quiet: bool) -> RunConfig:
    """With the placement that the planner chooses."""
    import dataclasses

    config = dataclasses.replace(config, placement=None)
    config.validate()
    if "WORLD_SIZE" in os.environ:
        raise ValueError(
            "--placement auto is for workers that are started here, on this machine. Under "
            "torchrun, give the placement that `fullgraph plan` recommends"
        )
    from fullgraph.planner.auto import place

    chosen = place(config, Stages(quiet))
    if not quiet:
        print(f"placement: {chosen.placement}", flush=True)
    return dataclasses.replace(config, placement=chosen.placement)


def _num_workers(given: int | None) -> int:
    around = os.environ.get("WORLD_SIZE")
    if around is None:
        return 1 if given is None else given
    if given is not None and str(given) != around:
        raise ValueError(f"--workers {given}, but torchrun started {around}; leave it out here")
    return int(around)


def _default_out(config: RunConfig) -> Path:
    source = config.graph.source.partition(",")[0]
    name = Path(source).stem.replace(":", "-").replace("=", "-")
    return Path("runs", f"{config.model.name}-{name}-{time.strftime('%Y%m%d-%H%M%S')}")


def _resumed(folder: RunFolder, config: RunConfig) -> RunConfig | None:
    """The configuration to resume the run in a folder with; None where there is no run yet.

    Raises ValueError where it is a run that cannot be resumed so, with the reason.
    """
    import dataclasses

    from fullgraph.training.config import RunConfig
    from fullgraph.training.resume import check_resumed
    from fullgraph.training.run_folder import RunFolderError
    from fullgraph.training.snapshot import find

    if not folder.path.exists() or (folder.path.is_dir() and not any(folder.path.iterdir())):
        print(f"fullgraph: no run in {folder.path} yet: starting from the beginning",
              file=sys.stderr)  # fmt: skip
        return None
    before = RunConfig.from_json(folder.config())
    check_resumed(before, config)
    every = config.training.checkpoint_every or before.training.checkpoint_every
    if not every and not find(folder.checkpoints):
        raise RunFolderError(
            f"{folder.path} has no checkpoint to resume from, as it was run without "
            "--checkpoint-every; start anew with --overwrite, or in another --out"
        )
    training = dataclasses.replace(config.training, checkpoint_every=every)
    return dataclasses.replace(config, training=training)


def _train_with_workers(
    config: RunConfig, out: Path, overwrite: bool, quiet: bool, resume: bool, max_restarts: int
) -> None:
    """Read and partition here, train in workers, and see that the folder is valid in any case."""
    from fullgraph.comm.placed_edges import check_placement
    from fullgraph.comm.placement import Placement
    from fullgraph.training.fit import check_graph
    from fullgraph.training.launch import WorkerError, run_workers
    from fullgraph.training.prepare import partitioned_folder
    from fullgraph.training.run_folder import RunFolder

    folder = RunFolder(out)
    resumed = _resumed(folder, config) if resume else None
    config = resumed or config
    before = folder.result() if resumed and folder.has_result() else None
    if resumed is None:
        folder.check_free(overwrite)
    with partitioned_folder(config.graph, config.workers, Stages(quiet), config.placement) as graph:
        check_graph(graph.meta, config.training)
        placement = Placement.parse(config.placement or graph.meta.placement)
        check_placement(graph, placement, config.workers)
        if resumed is None:
            folder.create(config.to_json(), overwrite)
        if not quiet:
            print(f"starting {config.workers} worker(s) of {config.threads} thread(s)", flush=True)
            if config.approximate:
                print(f"training is approximate: {config.approximate}", flush=True)
        arguments = {
            "config": config.to_json(), "out": str(out.absolute()), "quiet": quiet,
            "graph": str(graph.path.absolute()), "resume": resumed is not None,
        }  # fmt: skip

        def on_restart(error: WorkerError, number: int) -> dict[str, Any]:
            print(f"fullgraph: {' '.join(str(error).split())}; starting all workers again from the "
                  f"last checkpoint, {number} of {max_restarts}", file=sys.stderr)  # fmt: skip
            return {"resume": True}

        def end_early(status: str, error: str = "") -> None:
            if before is None or not folder.has_result() or folder.result() != before:
                folder.end_early(status, error)

        try:
            run_workers(
                "fullgraph.training.tasks:train", arguments, config.workers, config.threads,
                config.timeout, max_restarts, on_restart,
            )  # fmt: skip
        except WorkerError as error:
            end_early("failed", str(error))
            fail_for_worker(error)
        except KeyboardInterrupt:
            end_early("interrupted")
            leave_interrupted(f"interrupted; what there is so far is in {out}")


def _train_here(config: RunConfig, out: Path, overwrite: bool, quiet: bool, resume: bool) -> bool:
    """As one of the workers that torchrun started; whether this one is rank 0."""
    from fullgraph.comm.group import init
    from fullgraph.training.checkpoint import tell
    from fullgraph.training.run_folder import RunFolder
    from fullgraph.training.tasks import train as train_task

    group = init(timeout=config.timeout)
    try:
        resume = resume or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
        resumed = _resumed(RunFolder(out), config) if resume and group.rank == 0 else None
        if group.rank == 0 and resumed is None:
            RunFolder(out).create(config.to_json(), overwrite)
        given = {"config": (resumed or config).to_json(), "resume": resumed is not None}
        train_task(group, **tell(group, given), out=str(out), quiet=quiet)
    except Exception as error:
        group.report_failure(error)
        raise
    return group.rank == 0


def _say_result(out: Path, as_json: bool) -> None:
    from fullgraph.training.progress import megabytes
    from fullgraph.training.run_folder import RunFolder

    result = RunFolder(out).result()
    if as_json:
        print(json.dumps({"run": str(out), **result}), flush=True)
    if result["status"] == "interrupted":  # under torchrun
        leave_interrupted(f"interrupted; what there is so far is in {out}")
    if as_json:
        return
    if result["test"] is not None:
        print(f"test {result['metric']} {result['test']:.4f} (epoch {result['tested_epoch']})")
    if result.get("approximate"):
        exact = "evaluated exactly" if result["wire"] == "float32" else "as is its evaluation"
        print(f"training is approximate ({result['approximate']}), {exact}")
    peak = max(result["peak_memory_bytes"], default=0)
    print(
        f"{result['epochs']} epochs, {result['epoch_seconds']:.3g} s each (median), peak memory "
        f"{megabytes(peak)} a worker\nrun folder: {out}"
    )
