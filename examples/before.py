"""An ordinary PyG script: GraphSAGE on one machine, full batch."""

import sys

import torch
import torch.nn.functional as F
from example_data import load_data
from torch_geometric.nn import SAGEConv


class Net(torch.nn.Module):
    def __init__(self, features, hidden, classes):
        super().__init__()
        self.conv1 = SAGEConv(features, hidden)
        self.conv2 = SAGEConv(hidden, classes)

    def forward(self, x, edge_index):
        x = F.relu(self.conv1(x, edge_index))
        return self.conv2(x, edge_index)


data = load_data(*sys.argv[1:])
torch.manual_seed(0)
model = Net(data.num_features, 64, int(data.y.max()) + 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

for epoch in range(1, 31):
    model.train()
    optimizer.zero_grad()
    out = model(data.x, data.edge_index)
    loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
    loss.backward()
    optimizer.step()

    model.eval()
    with torch.no_grad():
        out = model(data.x, data.edge_index)
    correct = out.argmax(1) == data.y
    accuracy = correct[data.val_mask].float().mean().item()
    print(f"epoch {epoch:3d}  loss {loss.item():.4f}  validation accuracy {accuracy:.4f}")
