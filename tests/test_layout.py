"""Imports inside the package go one way: kernels → graph → comm → ops → nn → training → planner →
cli."""

from __future__ import annotations

import ast
from pathlib import Path

ORDER = ["kernels", "graph", "comm", "ops", "nn", "training", "planner", "cli"]
PACKAGE = Path(__file__).parents[1] / "src" / "fullgraph"


def wrong_imports(folder: str, source: str) -> list[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names += [f"{module}.{alias.name}" for alias in node.names] + [module]
    inner = {n.split(".")[1] for n in names if n.startswith("fullgraph.") and n.count(".") >= 1}
    allowed = ORDER[: ORDER.index(folder) + 1]
    return sorted(name for name in inner if name in ORDER and name not in allowed)


def test_imports_go_one_way() -> None:
    files = [path for folder in ORDER for path in (PACKAGE / folder).rglob("*.py")]
    assert len(files) > 20
    for path in files:
        folder = path.relative_to(PACKAGE).parts[0]
        assert wrong_imports(folder, path.read_text()) == [], path


def test_a_wrong_import_is_seen() -> None:
    assert wrong_imports("graph", "from fullgraph.ops.aggregate import aggregate") == ["ops"]
    assert wrong_imports("comm", "import fullgraph.nn.convert") == ["nn"]
    assert wrong_imports("comm", "from fullgraph import kernels, training") == ["training"]
    assert wrong_imports("ops", "from fullgraph import kernels") == []
