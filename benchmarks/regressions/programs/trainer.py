"""Trains with a class of its own: a compiled model, callbacks, metrics kept on the device."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class TrainingArguments:
    steps: int = 60
    batch_size: int = 8
    learning_rate: float = 1e-3
    logging_steps: int = 50
    max_grad_norm: float = 1.0
    compile: bool = True
    bf16: bool = True
    workers: int = 2
    hidden: int = 32


class Encoder(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.embed = nn.Embedding(100, hidden)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(hidden, 2, 2 * hidden, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.classify = nn.Linear(hidden, 4)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.classify(x.mean(1))


class Callback:
    def on_step_end(self, trainer, step, loss):
        pass


class LoggingCallback(Callback):
    def on_step_end(self, trainer, step, loss):
        if step % trainer.args.logging_steps == 0:
            print(f"{step}: loss {loss.item():.4f}, accuracy {(trainer.correct / max(trainer.seen, 1)).item():.3f}")


class Trainer:
    def __init__(self, model, dataset, args, callbacks):
        self.args = args
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = model.to(self.device)
        self.step_model = torch.compile(self.model) if args.compile else self.model
        self.callbacks = callbacks
        self.loader = DataLoader(dataset, args.batch_size, shuffle=True, num_workers=args.workers, pin_memory=True)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.learning_rate)
        self.scheduler = torch.optim.lr_scheduler.LinearLR(self.optimizer)
        self.correct = torch.zeros((), device=self.device)
        self.seen = 0

    def prepare(self, batch):
        return tuple(tensor.to(self.device, non_blocking=True) for tensor in batch)

    def training_step(self, batch):
        ids, labels = self.prepare(batch)
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.args.bf16):
            logits = self.step_model(ids)
            loss = F.cross_entropy(logits, labels)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.args.max_grad_norm)
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        self.correct += (logits.detach().argmax(-1) == labels).sum()
        self.seen += len(labels)
        return loss.detach()

    def train(self):
        step = 0
        while step < self.args.steps:
            for batch in self.loader:
                loss = self.training_step(batch)
                for callback in self.callbacks:
                    callback.on_step_end(self, step, loss)
                step += 1


if __name__ == "__main__":
    torch.manual_seed(0)
    args = TrainingArguments()
    dataset = TensorDataset(torch.randint(100, (400, 12)), torch.randint(4, (400,)))
    Trainer(Encoder(args.hidden), dataset, args, [LoggingCallback()]).train()
