"""A network over graphs of many nodes, read out by the sum of each graph's nodes; noise stands in for features."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


def readout(nodes: torch.Tensor, graph: torch.Tensor, graphs: int) -> torch.Tensor:
    """The sum of the nodes of each graph."""
    assert len(graph) == len(nodes)
    return nodes.view(graphs, -1, nodes.shape[1]).sum(1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU")
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    graphs, nodes, width, layers = (2, 64, 16, 1) if args.tiny else (4, 131072, 512, 3)
    with device:
        features = torch.randn(nodes, width)
        graph = torch.arange(graphs).repeat_interleave(nodes // graphs)
        targets = torch.randn(graphs, width)
        parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
        model = nn.Sequential(*parts)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for _ in range(args.steps):
        with torch.autocast(device.type, torch.bfloat16):
            states = model(features)
        loss = F.mse_loss(readout(states.float(), graph, graphs) / nodes, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
