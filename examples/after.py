"""The script of before.py on the whole graph with any number of workers, under torchrun."""

import sys

import torch
import torch.nn.functional as F
from example_data import load_data
from torch_geometric.nn import SAGEConv

import fullgraph


class Net(torch.nn.Module):
    def __init__(self, features, hidden, classes):
        super().__init__()
        self.conv1 = SAGEConv(features, hidden)
        self.conv2 = SAGEConv(hidden, classes)

    def forward(self, x, edge_index):
        x = F.relu(self.conv1(x, edge_index))
        return self.conv2(x, edge_index)


group = fullgraph.init()
graph = fullgraph.load(load_data(*sys.argv[1:]), group=group)
torch.manual_seed(0)
model = fullgraph.convert(Net(graph.num_features, 64, graph.num_classes))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

for epoch in range(1, 31):
    model.train()
    optimizer.zero_grad()
    out = model(graph.x, graph)
    loss = fullgraph.cross_entropy(out, graph.y, graph.train_mask)
    loss.backward()
    fullgraph.sum_gradients(model)
    optimizer.step()

    model.eval()
    with torch.no_grad():
        out = model(graph.x, graph)
    accuracy = fullgraph.accuracy(out, graph.y, graph.val_mask)
    if group.rank == 0:
        print(f"epoch {epoch:3d}  loss {loss.item():.4f}  validation accuracy {accuracy:.4f}")
