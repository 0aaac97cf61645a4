"""Train on sampled neighbourhoods with plain PyG, then evaluate exactly, on the whole graph.

    python examples/sampled_train.py --workers 2

does both halves: PyG's NeighborLoader in this process, which leaves the weights in a safetensors
file, and fullgraph on two workers, which start from that file. Training needs pyg-lib or
torch-sparse, as NeighborLoader does (`pip install --no-build-isolation torch-scatter torch-sparse`
compiles the latter, in a quarter of an hour). Evaluation needs neither, and on its own runs under
torchrun:

    torchrun --standalone --nproc-per-node 2 examples/sampled_train.py --evaluate model.safetensors
"""

import argparse
import os
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from example_data import load_data
from safetensors.torch import load_file, save_file
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import SAGEConv

import fullgraph
from fullgraph.training.launch import default_threads, run_workers

GRAPH = "planted:nodes=5000,edges=50000,features=32,classes=8"


class Net(torch.nn.Module):
    def __init__(self, features, hidden, classes):
        super().__init__()
        self.conv1 = SAGEConv(features, hidden)
        self.conv2 = SAGEConv(hidden, classes)

    def forward(self, x, edge_index):
        x = F.relu(self.conv1(x, edge_index))
        return self.conv2(x, edge_index)


def train(source, weights, epochs):
    """Plain PyG: steps on batches of 256 nodes, with 10 sampled neighbours a node and layer."""
    data = load_data(source)
    torch.manual_seed(0)
    model = Net(data.num_features, 64, int(data.y.max()) + 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = NeighborLoader(
        data, num_neighbors=[10, 10], batch_size=256, input_nodes=data.train_mask, shuffle=True
    )
    for epoch in range(1, epochs + 1):
        total = 0.0
        for batch in loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = F.cross_entropy(out, batch.y[: batch.batch_size])
            loss.backward()
            optimizer.step()
            total += loss.item() * batch.batch_size
        print(f"epoch {epoch:3d}  sampled loss {total / int(data.train_mask.sum()):.4f}")
    save_file(model.state_dict(), weights)


def evaluate(group, source, weights):
    """fullgraph: every worker computes its rows from all their neighbours."""
    graph = fullgraph.load(source, group=group)
    model = Net(graph.num_features, 64, graph.num_classes)
    model.load_state_dict(load_file(weights))
    model = fullgraph.convert(model).eval()
    with torch.no_grad():
        out = model(graph.x, graph)
    loss = fullgraph.cross_entropy(out, graph.y, graph.train_mask)
    accuracies = [
        f"{name} accuracy {fullgraph.accuracy(out, graph.y, mask):.4f}"
        for name, mask in (("validation", graph.val_mask), ("test", graph.test_mask))
    ]
    if group.rank == 0:
        print(f"whole graph, {group.size} worker(s): ", end="")
        print(f"training loss {loss.item():.4f}", *accuracies, sep="  ")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graph", nargs="?", default=GRAPH, help="a generated one, or an .npz")
    parser.add_argument("--evaluate", metavar="FILE", help="no training: weights from this file")
    parser.add_argument("--weights", default="model.safetensors", help="where training leaves them")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2, help="that share the evaluation")
    args = parser.parse_args()
    if args.evaluate and "WORLD_SIZE" in os.environ:  # one of torchrun's workers
        evaluate(fullgraph.init(), args.graph, args.evaluate)
        return
    if not args.evaluate:
        try:
            train(args.graph, args.weights, args.epochs)
        except ImportError as error:  # PyG's own, when the loader is first asked for a batch
            sys.exit(
                f"{error}. Install one of them to train; --evaluate FILE works without, given "
                "weights from elsewhere"
            )
    # The workers import this file by its name.
    places = [str(Path(__file__).parent.absolute()), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, places))
    arguments = {"source": args.graph, "weights": os.path.abspath(args.evaluate or args.weights)}
    threads = default_threads(args.workers)
    run_workers("sampled_train:evaluate", arguments, args.workers, threads, timeout=300)


if __name__ == "__main__":
    main()
