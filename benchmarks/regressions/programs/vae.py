"""Trains a variational autoencoder whose codes follow those of a teacher."""

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader

BATCH = 16
SIZE = 64
LATENT = 8

device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
torch.manual_seed(1)


class VAE(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.enc1 = nn.Linear(SIZE, hidden)
        self.enc2 = nn.Linear(hidden, hidden)
        self.mu = nn.Linear(hidden, LATENT)
        self.logvar = nn.Linear(hidden, LATENT)
        self.dec1 = nn.Linear(LATENT, hidden)
        self.dec2 = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, SIZE)

    def encode(self, x):
        h = F.elu(self.enc2(F.elu(self.enc1(x))))
        return self.mu(h), self.logvar(h)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        eps = torch.randn_like(std)
        return mu + eps * std

    def decode(self, z):
        return self.out(F.elu(self.dec2(F.elu(self.dec1(z)))))

    def forward(self, x):
        mu, logvar = self.encode(x)
        z = self.reparameterize(mu, logvar)
        return self.decode(z), mu, logvar


teacher = nn.Sequential(nn.Linear(SIZE, 64), nn.ELU(), nn.Linear(64, LATENT)).to(device)
model = VAE().to(device)
optimizer = optim.Adam(model.parameters(), lr=1e-3)
samples = torch.rand(400, SIZE)
loader = DataLoader(samples, batch_size=BATCH, shuffle=True, num_workers=0)
mean = torch.full((SIZE,), 0.5, device=device)


def loss_function(recon, x, mu, logvar):
    reconstruction = F.mse_loss(recon, x, reduction="sum")
    divergence = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return reconstruction + divergence


def train(epoch):
    total = torch.zeros((), device=device)
    for index, x in enumerate(loader):
        x = x.to(device)
        x = x - mean
        with torch.no_grad():
            code = teacher(x)
        recon, mu, logvar = model(x)
        loss = loss_function(recon, x, mu, logvar) + F.mse_loss(mu, code)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
        if index % 100 == 0:
            print(f"epoch {epoch} [{index * BATCH}/{len(samples)}] loss {loss.item() / BATCH:.4f}")
    print(f"epoch {epoch}: {total.item() / len(samples):.4f}")


for epoch in range(2):
    train(epoch)
