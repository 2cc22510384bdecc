"""A module trained by Lightning's Trainer."""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Points(Dataset):
    def __len__(self):
        return 320

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(32, generator=generator)
        return x, (x.sum() > 0).long()


class Classifier(L.LightningModule):
    def __init__(self, width=64):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(32, width), nn.GELU(), nn.Linear(width, 2))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss.item(), prog_bar=True)
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if batch_idx % 5 == 0:
            print("loss", batch_idx, f"{outputs['loss']:.9f}")

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main():
    L.seed_everything(0)
    loader = DataLoader(Points(), batch_size=16, shuffle=True)
    model = Classifier()
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="auto",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(model, loader)


if __name__ == "__main__":
    main()
