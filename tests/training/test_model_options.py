"""Options of models: checked without PyG, which only workers load."""

from __future__ import annotations

import subprocess
import sys

from fullgraph.training.model_options import NAMES
from fullgraph.training.models import MODELS

# What `fullgraph train` does before it starts its workers, where there is no PyG.
LAUNCHER = """
import sys
sys.modules["torch_geometric"] = None
import fullgraph.training.launch
from fullgraph.training.config import GraphOptions, RunConfig
from fullgraph.training.options import check_graph
from fullgraph.training.prepare import partitioned_folder
from fullgraph.training.run_folder import RunFolder

config = RunConfig(GraphOptions("planted:nodes=60,edges=200,classes=3,features=4"))
config.validate()
with partitioned_folder(config.graph, 2) as graph:
    check_graph(graph.meta, config.training)
print("torch._dynamo" in sys.modules)
"""


def test_every_name_is_of_a_model() -> None:
    assert tuple(MODELS) == NAMES


def test_starting_workers_takes_no_pyg() -> None:
    run = subprocess.run(
        [sys.executable, "-c", LAUNCHER], capture_output=True, text=True, timeout=120
    )
    assert (run.returncode, run.stdout) == (0, "False\n"), run.stderr
