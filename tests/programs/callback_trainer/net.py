import torch
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, x):
        return x + torch.relu(self.inner(x))


class Digits(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer() for _ in range(3)])
        self.out = nn.Linear(16, 4)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, betas=(0.9, 0.95))

    def forward(self, x, y=None):
        for layer in self.layers:
            x = layer(x)
        logits = self.out(x)
        return logits, F.cross_entropy(logits, y) if y is not None else None
