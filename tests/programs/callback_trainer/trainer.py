from collections import defaultdict
from types import SimpleNamespace

import torch
from torch.utils.data.dataloader import DataLoader


class Trainer:
    @staticmethod
    def get_default_config():
        config = SimpleNamespace()
        config.device = "auto"
        config.num_workers = 0
        config.max_iters = 24
        config.batch_size = 32
        return config

    def __init__(self, config, model, dataset):
        self.config = config
        self.model = model
        self.dataset = dataset
        self.callbacks = defaultdict(list)
        if config.device == "auto":
            self.device = "cuda" if torch.cuda.is_available() else "cpu"
        else:
            self.device = config.device
        self.model = self.model.to(self.device)

    def set_callback(self, event, callback):
        self.callbacks[event] = [callback]

    def run(self):
        model, config = self.model, self.config
        self.optimizer = model.configure_optimizers()
        loader = DataLoader(
            self.dataset,
            shuffle=True,
            batch_size=config.batch_size,
            num_workers=config.num_workers,
        )
        model.train()
        self.iter_num = 0
        batches = iter(loader)
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                batches = iter(loader)
                batch = next(batches)
            batch = [t.to(self.device) for t in batch]
            x, y = batch

            # forward the model
            _, self.loss = model(x, y)

            model.zero_grad(set_to_none=True)
            self.loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            self.optimizer.step()

            for callback in self.callbacks["on_batch_end"]:
                callback(self)
            self.iter_num += 1
            if config.max_iters is not None and self.iter_num >= config.max_iters:
                break
