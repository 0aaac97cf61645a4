"""`fullgraph plan`: predict every placement and schedule, and recommend one."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from fullgraph.cli.console import Stages, errors_in_a_line
from fullgraph.cli.train import MODELS

if TYPE_CHECKING:
    from fullgraph.planner.machine import GivenMachine


def plan(
    graph: Annotated[str, typer.Argument(
        help="A partitioned folder, a graph as for train, or figures: nodes=111e6,edges=3.2e9,"
             "features=128,classes=172,halo=0.3 (classes: 64 unless given; halo: rows a worker "
             "needs of others, for each row it owns).")],
    workers: Annotated[int, typer.Option(help="How many processes will train.")],
    model: Annotated[str, typer.Option(help=f"One of {MODELS}.")] = "sage",
    layers: Annotated[int, typer.Option(help="Layers of the model.")] = 2,
    hidden: Annotated[int, typer.Option(help="Columns between layers.")] = 64,
    heads: Annotated[int, typer.Option(help="Of gat.")] = 4,
    dropout: Annotated[float, typer.Option(help="Before every layer but the first.")] = 0.5,
    norm: Annotated[str, typer.Option(help="Between layers: none, batch or layer.")] = "none",
    memory: Annotated[str | None, typer.Option(
        help="What a worker may have, as 16GB or 16GiB; no limit unless given.")] = None,
    bandwidth: Annotated[str, typer.Option(
        help="Of a worker's link, each way, as 10Gbps or 1.2GB/s.")] = "10Gbps",
    latency: Annotated[str, typer.Option(help="Of a message, as 50us.")] = "50us",
    flops: Annotated[str | None, typer.Option(
        help="Of a worker's dense products in float32, as 500GFLOPS; measured here unless given.")
    ] = None,
    gather: Annotated[str | None, typer.Option(
        help="How fast a worker's sums read rows, as 20GB/s; measured here unless given.")] = None,
    threads: Annotated[int | None, typer.Option(
        help="Of each worker, to measure with; all cores unless given.")] = None,
    placement: Annotated[list[str] | None, typer.Option(
        help="Only this: destination, vertex-cut or grid:RxCxK; may be repeated.")] = None,
    schedule: Annotated[list[str] | None, typer.Option(
        help="Only this, as for train; may be repeated.")] = None,
    approximate: Annotated[bool, typer.Option(
        "--approximate", help="Predict delayed:5 and local as well.")] = False,
    wire: Annotated[str, typer.Option(
        help="What rows travel in: float32, their own dtype, or bf16, which is approximate.")
    ] = "float32",
    everything: Annotated[bool, typer.Option("--all", help="Print every line.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON alone.")] = False,
) -> None:  # fmt: skip
    """Predict memory, bytes and seconds of every placement and schedule; recommend one."""
    with errors_in_a_line():
        from fullgraph.planner.choose import APPROXIMATE, SCHEDULES, choose
        from fullgraph.planner.source import open_source
        from fullgraph.training.model_options import ModelOptions

        options = ModelOptions(model, layers, hidden, dropout, norm=norm, heads=heads)
        options.validate()
        among = _check(workers, placement, schedule, wire)
        given = _given(memory, bandwidth, latency, flops, gather)
        stage = Stages(quiet=as_json)
        source = open_source(graph, workers, stage)
        with stage("measuring this machine") if given.measures else nullcontext():
            machine = given.machine(threads)
        with stage("predicting"):
            found = choose(
                graph, source.figures, source.shares_of, options, workers, machine,
                among=among or source.among, wire=wire,
                schedules=schedule or (*SCHEDULES, *(APPROXIMATE if approximate else ())),
            )  # fmt: skip
        if as_json:
            print(json.dumps(found.to_json()))
            return
        from rich.console import Console

        from fullgraph.planner import report

        console = Console()
        if not console.is_terminal:
            console.width = FILE_COLUMNS
        console.print(report.table(found, None if everything else LINES))
        print(report.assumptions(found))
        print(report.advice(found))


LINES = 12
FILE_COLUMNS = 120  # where it is not a terminal


def _given(
    memory: str | None, bandwidth: str, latency: str, flops: str | None, gather: str | None
) -> GivenMachine:
    from fullgraph.planner import units
    from fullgraph.planner.machine import GivenMachine

    return GivenMachine(
        None if memory is None else units.parse_bytes(memory, "--memory"),
        units.parse_rate(bandwidth, "--bandwidth"),
        units.parse_seconds(latency, "--latency"),
        None if flops is None else units.parse_flops(flops, "--flops"),
        None if gather is None else units.parse_rate(gather, "--gather"),
    )


def _check(
    workers: int, placement: list[str] | None, schedule: list[str] | None, wire: str
) -> list[str]:
    from fullgraph.comm.exchange import wire_dtype
    from fullgraph.comm.placement import Placement
    from fullgraph.comm.schedule import Schedule

    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    for text in placement or []:
        Placement.parse(text).check_ranks(workers)
    for text in schedule or []:
        Schedule.parse(text)
    wire_dtype(wire)
    return placement or []
