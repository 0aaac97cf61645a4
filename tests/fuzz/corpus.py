"""What is mutated: one small file or folder of each kind that is read, made anew each time."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from scipy import sparse

from fullgraph.comm.distributed import DistributedGraph
from fullgraph.comm.group import Group
from fullgraph.graph.folder import save
from fullgraph.graph.partition import partition
from fullgraph.graph.sources import read
from fullgraph.nn.convert import convert
from fullgraph.training import checkpoint
from fullgraph.training.config import GraphOptions, RunConfig
from fullgraph.training.models import ModelOptions, build_model
from fullgraph.training.options import FitOptions
from fullgraph.training.results import Epoch
from fullgraph.training.run_folder import RunFolder
from tests.graph.small import random_cut, random_graph, with_types
from tests.typed_graphs import typed

MODEL = ModelOptions("sage", layers=2, hidden=3)


def graph_folders(root: Path) -> list[Path]:
    """Partitioned in 2 or 3 parts: format versions 1 to 3, with types of edges and of nodes."""
    plain = random_graph(12, 30)
    several = replace(plain, y=torch.ones(12, 4), num_classes=4, masks={}, edge_attr=None)
    hetero = read(typed())
    made = {
        "plain": partition(plain, 2, "contiguous"),
        "several": partition(several, 3, "contiguous"),
        "types": partition(with_types(plain), 2, "contiguous"),
        "nodes": partition(hetero, 2, "contiguous"),
        "cut": random_cut(plain, 2),
    }
    for name, partitioned in made.items():
        save(partitioned, root / name)
    return [root / name for name in made]


def npz_files() -> dict[str, bytes]:
    """With dense features, with sparse ones, compressed, with types of edges."""
    rng = np.random.default_rng(0)
    edges = rng.integers(0, 9, (2, 20)).astype(np.int32)
    x = (rng.random((9, 4)) < 0.3).astype(np.float32)
    csr = sparse.csr_matrix(x)
    mask = np.arange(9) % 3
    base = {"edge_index": edges, "num_nodes": np.array(9), "y": np.arange(9) % 3}
    masks = {f"{key}_mask": mask == i for i, key in enumerate(("train", "val", "test"))}
    sparse_x = {
        "x_indptr": csr.indptr, "x_indices": csr.indices, "x_data": csr.data,
        "x_shape": np.array(csr.shape),
    }  # fmt: skip
    types = {"edge_type": np.arange(20) % 3, "num_relations": np.array(3)}
    weights = {"edge_weight": rng.random(20), "edge_attr": rng.random((20, 2)).astype(np.float32)}
    kinds = {
        "dense": (np.savez, {**base, **masks, "x": x, "num_classes": np.array(3)}),
        "sparse": (np.savez, {**base, **sparse_x, "train_mask": np.eye(9, dtype=bool)}),
        "packed": (np.savez_compressed, {**base, **masks, "x": x, **weights}),
        "types": (np.savez, {**base, **types}),
    }
    files = {}
    for name, (write, arrays) in kinds.items():
        out = io.BytesIO()
        write(out, **arrays)
        files[name] = out.getvalue()
    return files


def model_and_graph() -> tuple[torch.nn.Module, torch.optim.Optimizer, DistributedGraph]:
    """On a group of one."""
    torch.manual_seed(0)
    graph = DistributedGraph.build(partition(random_graph(12, 30), 1), Group())
    model = convert(build_model(MODEL, graph.num_features, graph.num_classes))
    return model, torch.optim.Adam(model.parameters()), graph


def run_folder(path: Path) -> None:
    """As training leaves one, with two checkpoints."""
    model, optimizer, graph = model_and_graph()
    config = RunConfig(GraphOptions("a.npz"), MODEL, FitOptions(epochs=2, checkpoint_every=1))
    run = RunFolder(path)
    run.create({**config.to_json(), "data": {"num_features": 2, "num_classes": 3}})
    rows = []
    for epoch in (1, 2):
        optimizer.zero_grad()
        model(graph.x, graph).sum().backward()
        optimizer.step()
        row = Epoch(epoch, 1.5, 0.1, metrics={"train": 0.5, "val": float("nan")}).to_json()
        rows.append(row)
        run.add_metrics(row)
        weights = dict(model.state_dict())
        extra = {"kept": weights, "tested": epoch, "best": epoch, "approximate": []}
        snapshot = checkpoint.take(epoch, model, optimizer, graph, extra, {"lr": 0.01}, rows[:])
        checkpoint.save_snapshot(run.checkpoints, snapshot, graph, keep=2)
    run.write_weights(model.state_dict())
    run.write_result({"status": "finished", "epochs": 2, "test": 0.5})
