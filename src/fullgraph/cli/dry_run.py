"""`fullgraph train --dry-run`: check what can be checked without reading a graph, and print the
commands that would train."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from fullgraph.cli.clusters import LAUNCHERS, Cluster

if TYPE_CHECKING:
    from fullgraph.training.config import RunConfig

NOT_PRINTED = ("dry_run", "hosts", "launcher")


def check_launcher(dry_run: bool, hosts: int | None, launcher: str | None) -> None:
    """Raises ValueError for options that do not go together."""
    if not dry_run and (hosts is not None or launcher is not None):
        raise ValueError(
            "--hosts and --launcher say what --dry-run prints; add it, and start what it prints"
        )
    if launcher is not None and launcher not in LAUNCHERS:
        raise ValueError(f"--launcher must be one of {', '.join(LAUNCHERS)}, got {launcher!r}")
    if launcher == "kubernetes" and hosts is not None:
        raise ValueError("--launcher kubernetes has a pod for each worker; leave --hosts out")


def commands(
    train: Callable[..., None], given: dict[str, Any], config: RunConfig, out: Path
) -> str:  # fmt: skip
    """What `fullgraph train` with the options `given` would start, or its file for a cluster.

    Raises ValueError where it could not train, as far as that is known without reading a graph.
    """
    check_graph_exists(config)
    hosts, launcher = given["hosts"], given["launcher"]
    if hosts is None and launcher is None:
        resolved = {"out": out, "placement": config.placement, "threads": config.threads}
        return shlex.join(words(train, {**given, **resolved})) + "\n"
    graph = config.graph.source
    if not Path(graph).is_dir():
        parts = config.graph.parts or config.workers
        cut = " --placement vertex-cut" if config.placement == "vertex-cut" else ""
        raise ValueError(
            "on a cluster every worker opens its own parts, of a folder that all hosts see. Make "
            f"that first: fullgraph partition {shlex.quote(given['graph'])} --parts {parts}{cut} "
            "--out FOLDER, and train on FOLDER"
        )
    if given["overwrite"]:
        raise ValueError(
            f"--overwrite would remove, when the job starts again, what it has done; remove {out} "
            "now, and leave it out"
        )
    out = out.expanduser().absolute()
    resume = bool(given["resume"] or given["checkpoint_every"])
    changed = {"graph": graph, "out": out, "workers": None, "threads": None, "resume": resume,
               "max_restarts": 0, "placement": config.placement}  # fmt: skip
    run = Cluster(
        words(train, {**given, **changed}), graph, str(out), config.workers,
        1 if hosts is None else hosts, given["threads"], given["max_restarts"],
    )  # fmt: skip
    return LAUNCHERS[launcher or "torchrun"](run)


def words(train: Callable[..., None], given: dict[str, Any]) -> list[str]:
    """The command line of these options of `train`, without those that are as they are anyway."""
    options = get_type_hints(train, include_extras=True)
    line = ["fullgraph", "train", str(given["graph"])]
    for name, parameter in inspect.signature(train).parameters.items():
        value = given[name]
        if name in ("graph", *NOT_PRINTED) or value is None or value == parameter.default:
            continue
        spelt = options[name].__metadata__[0].default  # typer.Option("--spelt", ...)
        flag = spelt if isinstance(spelt, str) else f"--{name.replace('_', '-')}"
        line += [flag] if value is True else [flag, str(value)]
    return line


def check_graph_exists(config: RunConfig) -> None:
    """Raises ValueError where the graph cannot be there, or not be trained on by these workers. Of
    one that is not partitioned, only its name is looked at."""
    from fullgraph.comm.placed_edges import check_placement
    from fullgraph.comm.placement import Placement
    from fullgraph.graph.sources import check_source
    from fullgraph.training.options import check_graph
    from fullgraph.training.prepare import partitioned_folder

    if not Path(config.graph.source).is_dir():
        check_source(config.graph.source)
        return
    with partitioned_folder(config.graph, config.workers) as graph:
        check_graph(graph.meta, config.training)
        placement = Placement.parse(config.placement or graph.meta.placement)
        check_placement(graph, placement, config.workers)
