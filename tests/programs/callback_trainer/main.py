"""Trains by a class that calls back."""

import torch
from net import Digits
from torch.utils.data import TensorDataset
from trainer import Trainer

if __name__ == "__main__":
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(256, 16), torch.randint(4, (256,)))

    # build the model
    model = Digits()

    trainer = Trainer(Trainer.get_default_config(), model, dataset)

    def report(trainer):
        if trainer.iter_num % 4 == 0:
            print(f"{trainer.iter_num} {trainer.loss.item():.6f}")

    trainer.set_callback("on_batch_end", report)
    trainer.run()
