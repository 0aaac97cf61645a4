"""The graph of the examples: a generated one, or an `.npz` that you name."""

from torch_geometric.data import Data

from fullgraph.graph.sources import read


def load_data(source: str = "planted:nodes=5000,edges=50000,features=32,classes=8") -> Data:
    return read(source).to_pyg()
