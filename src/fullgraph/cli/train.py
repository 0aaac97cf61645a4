"""`fullgraph train`: train a named model on a graph, and leave a run folder."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fullgraph.cli.console import Stages, errors_in_a_line, fail_for_worker, leave_interrupted
from fullgraph.cli.dry_run import check_launcher, commands
from fullgraph.training.events import Log

if TYPE_CHECKING:
    from fullgraph.training.config import RunConfig
    from fullgraph.training.run_folder import RunFolder

MODELS = "gcn, sage, gin, gat, graphconv, sgc, appnp or mlp"

NOT_OF_THE_RUN = ("out", "overwrite", "as_json", "resume", "max_restarts", "log_json",
                  "tensorboard", "dry_run", "hosts", "launcher")  # fmt: skip


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
        help="Partitioning: metis, ldg, kahypar, random (unless given, of a grid) or contiguous; "
        "of a vertex cut, libra.")] = None,
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
    profile: Annotated[bool, typer.Option(
        "--profile", help="Find where the seconds go: after two epochs, profile some. A timeline "
        "for ui.perfetto.dev, a picture and a table of every worker go to profile/ in --out.")
    ] = False,
    profile_epochs: Annotated[int | None, typer.Option(
        help="How many, with --profile; 3 unless given.")] = None,
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
    log_json: Annotated[bool, typer.Option(
        "--log-json", help="Log JSON, an object a line and event; to stderr where --json is given.")
    ] = False,
    tensorboard: Annotated[bool, typer.Option(
        "--tensorboard", help="Write curves for TensorBoard into the run folder, too.")] = False,
    dry_run: Annotated[bool, typer.Option(
        "--dry-run", help="Check what can be checked, print the command, and start nothing.")
    ] = False,
    launcher: Annotated[str | None, typer.Option(
        help="With --dry-run: print a complete file for torchrun, slurm or kubernetes.")] = None,
    hosts: Annotated[int | None, typer.Option(
        help="With --dry-run: how many hosts share the workers, under torchrun or slurm.")] = None,
) -> None:  # fmt: skip
    """Train a model on the whole graph with any number of workers: exactly, unless told not to."""
    given = dict(locals())
    options = {k: v for k, v in given.items() if k not in NOT_OF_THE_RUN}
    how = {"quiet": as_json, "log_json": log_json, "tensorboard": tensorboard}
    with errors_in_a_line():
        check_launcher(dry_run, hosts, launcher)
        config = _config(**options)
        config = _placed(config, Log(None, as_json or dry_run)) if placement == "auto" else config
        config.validate()
        _check_restarts(resume, max_restarts, overwrite, out)
        if tensorboard:
            from fullgraph.training.board import check_installed

            check_installed()
        out = _default_out(config) if out is None else out
        if dry_run:
            _check_out(config, out, overwrite, resume)
            print(commands(train, given, config, out), end="")
        elif "WORLD_SIZE" in os.environ:
            _train_here(config, out, overwrite, resume, how)
        else:
            _train_with_workers(config, out, overwrite, resume, max_restarts, how)


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
    wire: str, exact: bool, timeout: float, profile: bool, profile_epochs: int | None,
    **training: Any,
) -> RunConfig:  # fmt: skip
    from fullgraph.training.config import GraphOptions, RunConfig
    from fullgraph.training.launch import default_threads
    from fullgraph.training.model_options import ModelOptions
    from fullgraph.training.options import FitOptions

    workers = _num_workers(workers)
    here = max(1, int(os.environ.get("LOCAL_WORLD_SIZE") or workers))
    # Found again by `fullgraph predict` from another folder.
    path = os.path.expanduser(graph)
    source = str(Path(path).absolute()) if os.path.exists(path) else graph
    return RunConfig(
        graph=GraphOptions(source, split, parts, method, normalize_features),
        model=ModelOptions(model, layers, hidden, dropout, input_dropout, norm, heads),
        training=FitOptions(**training),
        workers=workers,
        threads=threads if threads is not None else default_threads(here),
        schedule=schedule,
        placement=placement,
        wire=wire,
        exact=exact,
        timeout=timeout,
        profile=_num_profiled(profile, profile_epochs),
    )


def _num_profiled(profile: bool, epochs: int | None) -> int:
    from fullgraph.training.profile import EPOCHS

    if not profile and epochs is not None:
        raise ValueError(f"--profile-epochs {epochs} was given without --profile")
    if epochs is not None and epochs < 1:
        raise ValueError(f"profile_epochs must be at least 1, got {epochs}")
    return (EPOCHS if epochs is None else epochs) if profile else 0


def _placed(config: RunConfig, log: Log) -> RunConfig:
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

    chosen = place(config, Stages(log=log))
    log("placement", f"placement: {chosen.placement}", placement=chosen.placement)
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

    from fullgraph.training.resume import check_resumed
    from fullgraph.training.run_folder import RunFolderError
    from fullgraph.training.snapshot import find

    if not folder.path.exists() or (folder.path.is_dir() and not any(folder.path.iterdir())):
        print(f"fullgraph: no run in {folder.path} yet: starting from the beginning",
              file=sys.stderr)  # fmt: skip
        return None
    before = folder.run_config()
    check_resumed(before, config)
    every = config.training.checkpoint_every or before.training.checkpoint_every
    if not every and not find(folder.checkpoints):
        raise RunFolderError(
            f"{folder.path} has no checkpoint to resume from, as it was run without "
            "--checkpoint-every; start anew with --overwrite, or in another --out"
        )
    training = dataclasses.replace(config.training, checkpoint_every=every)
    return dataclasses.replace(config, training=training)


def _check_out(config: RunConfig, out: Path, overwrite: bool, resume: bool) -> None:
    from fullgraph.training.run_folder import RunFolder

    if not (resume and _resumed(RunFolder(out), config)):
        RunFolder(out).check_free(overwrite)


def _train_with_workers(
    config: RunConfig, out: Path, overwrite: bool, resume: bool, max_restarts: int,
    how: dict[str, Any],
) -> None:  # fmt: skip
    """Read and partition here, train in workers, and see that the folder is valid in any case."""
    from fullgraph.comm.placed_edges import check_placement
    from fullgraph.comm.placement import Placement
    from fullgraph.graph.disk import check_writable
    from fullgraph.training.launch import WorkerError, run_workers
    from fullgraph.training.options import check_graph
    from fullgraph.training.prepare import partitioned_folder
    from fullgraph.training.run_folder import RunFolder

    folder, log = RunFolder(out), Log(None, how["quiet"], how["log_json"])
    resumed = _resumed(folder, config) if resume else None
    config = resumed or config
    before = _result_before(folder, resumed)
    if resumed is None:
        folder.check_free(overwrite)
    check_writable(out)
    stages = Stages(log=log)
    with partitioned_folder(config.graph, config.workers, stages, config.placement) as graph:
        check_graph(graph.meta, config.training)
        placement = Placement.parse(config.placement or graph.meta.placement)
        check_placement(graph, placement, config.workers)
        if resumed is None:
            folder.create(config.to_json(), overwrite)
        _say_start(config, log, f"starting {config.workers} worker(s)")
        arguments = {
            "config": config.to_json(), "out": str(out.absolute()), **how,
            "graph": str(graph.path.absolute()), "resume": resumed is not None,
        }  # fmt: skip

        def on_restart(error: WorkerError, number: int) -> dict[str, Any]:
            text = (f"{' '.join(str(error).split())}; starting all workers again from the last "
                    f"checkpoint, {number} of {max_restarts}")  # fmt: skip
            log("restart", text, failed=error.rank, restart=number)
            print(f"fullgraph: {text}", file=sys.stderr)
            return {"resume": True}

        try:
            run_workers(
                "fullgraph.training.tasks:train", arguments, config.workers, config.threads,
                config.timeout, max_restarts, on_restart,
            )  # fmt: skip
        except WorkerError as error:
            _end_early(folder, before, "failed", str(error))
            log("failure", str(error), failed=error.rank)
            fail_for_worker(error)
        except KeyboardInterrupt:
            _end_early(folder, before, "interrupted")
            _say_result(out, how["quiet"], log)
            leave_interrupted(f"interrupted; what there is so far is in {out}")
    _say_result(out, how["quiet"], log)


def _say_start(config: RunConfig, log: Log, who: str, **fields: Any) -> None:
    text = f"{who} of {config.threads} thread(s)"
    log("start", text, workers=config.workers, threads=config.threads, **fields)
    if config.approximate:
        text = f"training is approximate: {config.approximate}"
        log("approximate", text, approximate=config.approximate)


def _result_before(folder: RunFolder, resumed: RunConfig | None) -> dict[str, Any] | None:
    """Of the run that is resumed, where it had come to one."""
    return folder.result() if resumed is not None and folder.has_result() else None


def _end_early(
    folder: RunFolder, before: dict[str, Any] | None, status: str, error: str = ""
) -> None:
    """Say in the folder how the run ended; the result of one that was not gone on with stays."""
    if before is None or not folder.has_result() or folder.result() != before:
        folder.end_early(status, error)


def _train_here(
    config: RunConfig, out: Path, overwrite: bool, resume: bool, how: dict[str, Any]
) -> None:
    """As one of the workers that torchrun, or a batch system, started."""
    import torch

    from fullgraph.comm.group import init
    from fullgraph.training.checkpoint import tell
    from fullgraph.training.interrupts import stop_on_signals
    from fullgraph.training.run_folder import RunFolder
    from fullgraph.training.tasks import train as train_task

    stop_on_signals(int(os.environ.get("RANK", "0")))
    torch.set_num_threads(config.threads)
    group = init(timeout=config.timeout)
    log = Log(group.rank, how["quiet"], how["log_json"])
    where = f"on {socket.gethostname()}, process {os.getpid()}"
    _say_start(config, log, f"starting {where},", host=socket.gethostname(), pid=os.getpid())
    folder = RunFolder(out) if group.rank == 0 else None
    before, began = None, False
    try:
        # torchrun counts a restart on the host whose worker failed, not always on the others.
        restarts = torch.tensor([int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))])
        resume = resume or bool(group.all_reduce(restarts, "the number of restarts"))
        resumed = _resumed(folder, config) if resume and folder is not None else None
        if folder is not None and resumed is None:
            folder.create(config.to_json(), overwrite)
        if folder is not None:
            before, began = _result_before(folder, resumed), True
        given = {"config": (resumed or config).to_json(), "resume": resumed is not None}
        interrupted = train_task(group, **tell(group, given), out=str(out), **how)
    except Exception as error:
        group.report_failure(error)
        log("failure", f"{type(error).__name__}: {error}", failed=group.rank)
        if folder is not None and began:
            _end_early(folder, before, "failed", str(error))
        raise
    if folder is not None:
        _say_result(out, how["quiet"], log)
    if interrupted:
        there = f"interrupted; what there is so far is in {out}"
        leave_interrupted(there if folder is not None else "")


def _say_profile(folder: RunFolder, log: Log) -> None:
    from fullgraph.training.profile_report import read, say

    summary = read(folder.profile)
    if summary is not None and not log.quiet and not log.as_json:
        say(summary)
    found = "none, as training ended before" if summary is None else str(folder.profile)
    log("profile", f"profile: {found}", folder=None if summary is None else str(folder.profile))


def _say_result(out: Path, as_json: bool, log: Log) -> None:
    from fullgraph.training.progress import megabytes
    from fullgraph.training.run_folder import RunFolder

    folder = RunFolder(out)
    result = folder.result()
    if as_json:
        print(json.dumps({"run": str(out), **result}), flush=True)
    if folder.config().get("profile"):
        _say_profile(folder, log)
    lines = []
    if result.get("test") is not None:
        lines.append(f"test {result['metric']} {result['test']:.4f} "
                     f"(epoch {result['tested_epoch']})")  # fmt: skip
    if result.get("approximate"):
        exact = "evaluated exactly" if result["wire"] == "float32" else "as is its evaluation"
        lines.append(f"training is approximate ({result['approximate']}), {exact}")
    if result.get("epoch_seconds") is not None:
        peak = megabytes(max(result["peak_memory_bytes"], default=0))
        lines.append(f"{result['epochs']} epochs, {result['epoch_seconds']:.3g} s each (median), "
                     f"peak memory {peak} a worker")  # fmt: skip
    lines.append(f"run folder: {out}")
    fields = {name: value for name, value in result.items() if name != "traffic"}
    log("result", f"{result['status']}\n" * (not log.on_terminal) + "\n".join(lines),
        run=str(out), **fields)  # fmt: skip
