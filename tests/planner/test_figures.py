"""Figures of a graph are read, and mistakes in them named."""

from __future__ import annotations

import pytest

from fullgraph.comm.placement import DESTINATION
from fullgraph.planner.figures import CLASSES, FORM, BlockFigures, Shares, is_figures, parse_figures


def test_figures_are_read() -> None:
    figures = parse_figures(FORM)
    assert (figures.nodes, figures.edges) == (111_000_000, 3_200_000_000)
    assert (figures.features, figures.classes, figures.halo) == (128, 172, 0.3)
    assert parse_figures("nodes=10,edges=0,features=4,classes=2").halo is None


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        (FORM, True),
        ("nodes=5", True),
        ("planted:nodes=10,edges=20", False),
        ("pyg:Cora", False),
        ("graphs/nodes=5.npz", False),
    ],
)
def test_figures_are_told_from_graphs(text: str, is_one: bool) -> None:
    assert is_figures(text) == is_one


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("nodes=1.5", "nodes='1.5' is not a whole number"),
        ("halo=some", "halo='some' is not a number"),
        ("halo=nan", "halo='nan' is not a number"),
        ("halo=-1", "halo=-1.0 must be 0 or more"),
        ("halo=1e300", r"halo=1e\+300 must be 0 or more"),
        ("nodes=1e300", "nodes=10+.* is more than any graph has"),
        ("train=2", "train=2.0 must be between 0 and 1"),
        ("features=0", "features=0 must be at least 1"),
        ("weight=1", "'weight' is unknown; there are nodes, edges, features, classes, halo"),
    ],
)
def test_mistakes_are_named(change: str, message: str) -> None:
    key = change.partition("=")[0]
    given = {"nodes": "9", "edges": "9", "features": "3", "classes": "2"}
    text = ",".join([change, *(f"{k}={v}" for k, v in given.items() if k != key)])
    with pytest.raises(ValueError, match=message):
        parse_figures(text)


def test_missing_and_repeated_figures_are_named() -> None:
    with pytest.raises(ValueError, match="edges, features must be given"):
        parse_figures("nodes=9")
    assert parse_figures("nodes=9,edges=9,features=3").classes == CLASSES
    with pytest.raises(ValueError, match="'nodes' is given twice"):
        parse_figures("nodes=9,nodes=8")


def test_the_heaviest_ranks_have_the_most_edges_rows_held_or_rows_sent() -> None:
    def blocks(*edges: int) -> tuple[BlockFigures, ...]:
        return tuple(BlockFigures(5, 5, e) for e in edges)

    shares = Shares(
        DESTINATION, (5, 5, 9), (1, 1, 1), (blocks(9, 9, 9), blocks(1, 0, 0), blocks(2, 0, 1)),
        gather=((0, 4, 0), (0, 0, 0), (0, 3, 0)), reduce=((0,) * 3,) * 3, loops=(0,) * 3,
        looped=(0,) * 3,
    )  # fmt: skip
    assert shares.heaviest() == [0, 1, 2]  # edges; sent; held
    assert shares.sent(1) == 7
    assert shares.edge_imbalance == pytest.approx(27 * 3 / 31)
