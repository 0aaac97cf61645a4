"""A plan as a table, and the words around it."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from fullgraph.planner.choose import Candidate, Plan
from fullgraph.planner.units import show_bytes, show_seconds


def table(plan: Plan, limit: int | None = None) -> Table:
    """For printing with rich: a row a candidate, the fastest first; `limit`: so many rows."""
    figures = plan.figures
    title = (
        f"{plan.model.name} {plan.model.layers} × {plan.model.hidden} on {figures.nodes:,} nodes, "
        f"{figures.edges:,} edges, {figures.classes} classes, {plan.workers} worker(s)"
    )
    out = Table(title=escape(title))
    for name in ("placement", "schedule"):
        out.add_column(name)
    for name in ("memory a worker", "sent an epoch", "s an epoch", "computing", "edges max/mean"):
        out.add_column(name, justify="right")
    out.add_column("")
    shown = plan.candidates if limit is None else plan.candidates[:limit]
    for candidate in shown:
        out.add_row(*_row(plan, candidate), style=None if candidate.usable else "dim")
    if len(shown) < len(plan.candidates):
        out.caption = f"and {len(plan.candidates) - len(shown)} more (--all)"
    return out


def _row(plan: Plan, candidate: Candidate) -> list[str]:
    names = [candidate.placement, candidate.schedule]
    if candidate.refused:
        return [*names, "", "", "", "", "", escape(candidate.refused)]
    return [
        *names, show_bytes(candidate.memory), show_bytes(candidate.sent),
        show_seconds(candidate.seconds), show_seconds(candidate.compute),
        f"{candidate.imbalance:.2f}", _note(plan, candidate),
    ]  # fmt: skip


def _note(plan: Plan, candidate: Candidate) -> str:
    notes = ["recommended"] if candidate is plan.best else []
    notes += [] if candidate.fits else ["does not fit"]
    notes += [] if candidate.exact else ["approximate"]
    return ", ".join(notes)


def assumptions(plan: Plan) -> str:
    """What the figures rest on."""
    machine, rates = plan.machine, plan.machine.rates
    network = machine.network
    lines = [
        f"a worker: {rates.flops / 1e9:.3g} GFLOPS in dense products, sums read rows at "
        f"{show_bytes(rates.gather)}/s",
        f"network: {show_bytes(network.bandwidth)}/s, {show_seconds(network.latency)} a message",
    ]
    if plan.workers > 1 and plan.figures.halo is None and plan.figures.name == "figures":
        lines.append("the graph has no locality, as halo=… was not given")
    return "\n".join(lines)


def advice(plan: Plan) -> str:
    """The command to run; or what to do where nothing fits."""
    best, smallest = plan.best, plan.smallest
    if best is not None:
        return f"recommended: {plan.command(best)}"
    if smallest is None:
        return "nothing of this can run: see the reasons above"
    return (
        f"nothing fits: the smallest, {smallest.placement} with {smallest.schedule}, needs "
        f"{show_bytes(smallest.memory)} a worker. Take more workers, or more memory"
    )
