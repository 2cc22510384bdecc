"""The older import of Lightning, with a data module and a module that steps its optimizer by itself."""

import argparse

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Noise(pl.LightningDataModule):
    def __init__(self, batch_size, num_workers=0):
        super().__init__()
        self.batch_size = batch_size
        self.num_workers = num_workers

    def setup(self, stage=None):
        self.data = TensorDataset(torch.randn(320, 16))

    def train_dataloader(self):
        return DataLoader(self.data, batch_size=self.batch_size, shuffle=True, num_workers=self.num_workers)


class Autoencoder(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.encoder = nn.Linear(16, 4)
        self.decoder = nn.Linear(4, 16)

    def training_step(self, batch, batch_idx):
        opt = self.optimizers()
        (x,) = batch
        loss = nn.functional.mse_loss(self.decoder(self.encoder(x)), x)
        opt.zero_grad()
        self.manual_backward(loss)
        opt.step()
        self.log("loss", loss)
        if batch_idx % 5 == 0:
            print("loss", batch_idx, f"{loss.item():.9f}")

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--precision", default="32-true")
    args = parser.parse_args()
    pl.seed_everything(1)
    trainer = pl.Trainer(
        max_epochs=1, precision=args.precision, logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(Autoencoder(), datamodule=Noise(args.batch_size))
