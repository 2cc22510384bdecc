"""Changes that cost nothing by mistake: renamed, refactored, configured or extended programs, in the form of `injected`."""

from __future__ import annotations

from injected import Change

HARMLESS: list[Change] = [
    ("mlp", "comment", (("        for x, y in loader:\n", "        # one pass\n        for x, y in loader:\n"),)),
    ("mlp", "wider", (("width=64", "width=96"),)),
    ("mlp", "deeper", (("depth=4", "depth=6"),)),
    ("mlp", "larger batch", (("batch_size=32", "batch_size=64"),)),
    ("mlp", "another learning rate", (("lr=1e-3", "lr=3e-4, weight_decay=0.05"),)),
    ("mlp", "another schedule", (("CosineAnnealingLR(optimizer, 100)", "StepLR(optimizer, 30)"),)),
    ("mlp", "another activation", (("x = F.relu(self.first(x))", "x = F.gelu(self.first(x))"),)),
    ("mlp", "logs less often", (("step % 50", "step % 100"),)),
    (
        "mlp",
        "step as a function",
        (
            (
                "            logits = model(x)\n            loss = F.cross_entropy(logits, y, weight=weight)\n",
                "            logits, loss = compute(model, x, y, weight)\n",
            ),
            (
                "def main():\n",
                "def compute(model, x, y, weight):\n    logits = model(x)\n    return logits, F.cross_entropy(logits, y, weight=weight)\n\n\ndef main():\n",
            ),
        ),
    ),
    ("mlp", "label smoothing", (("weight=weight)", "weight=weight, label_smoothing=0.1)"),)),
    ("cnn", "wider", (('default=8)\nparser.add_argument("--epochs"', 'default=12)\nparser.add_argument("--epochs"'),)),
    ("cnn", "larger batch", (('"--batch-size", type=int, default=8', '"--batch-size", type=int, default=4'),)),
    ("cnn", "Nesterov", (("momentum=0.9", "momentum=0.9, nesterov=True"),)),
    ("cnn", "another learning rate", (("lr=0.1", "lr=0.05"),)),
    (
        "cnn",
        "saves a checkpoint at the end",
        (("\n\nmain()\n", '    torch.save(model.state_dict(), "model.pt")\n\n\nmain()\n'),),
    ),
    (
        "cnn",
        "one block more",
        (("Block(width, width, 1), ", "Block(width, width, 1), Block(width, width, 1), "),),
    ),
    (
        "cnn",
        "renamed variables",
        (
            ("        running = torch", "        total_loss = torch"),
            ("            running += loss", "            total_loss += loss"),
            ("running.item()", "total_loss.item()"),
        ),
    ),
    ("cnn", "set_to_none said", (("optimizer.zero_grad()", "optimizer.zero_grad(set_to_none=True)"),)),
    (
        "cnn",
        "label smoothing",
        (("loss = F.cross_entropy(logits, labels)", "loss = F.cross_entropy(logits, labels, label_smoothing=0.1)"),),
    ),
    ("cnn", "more workers", (("num_workers=0, pin", "num_workers=2, pin"),)),
    ("gpt", "wider", (("n_embd = 32", "n_embd = 48"),)),
    ("gpt", "one layer more", (("n_layer = 2", "n_layer = 3"),)),
    ("gpt", "more heads", (("n_head = 2", "n_head = 4"),)),
    ("gpt", "longer context", (("block_size = 32", "block_size = 48"),)),
    ("gpt", "larger batch", (("batch_size = 4", "batch_size = 6"),)),
    ("gpt", "another clip", (("grad_clip = 1.0", "grad_clip = 0.5"),)),
    ("gpt", "type hints", (("def get_lr(it):", "def get_lr(it: int) -> float:"),)),
    (
        "gpt",
        "another loop over tasks",
        (("for k in range(eval_iters):", "for number in range(eval_iters):"), ("losses[k]", "losses[number]")),
    ),
    ("gpt", "weight decay", (("lr=1e-3, fused", "lr=1e-3, weight_decay=0.1, fused"),)),
    ("gpt", "squared ReLU", (("F.gelu(self.fc(self.ln_2(x)))", "F.relu(self.fc(self.ln_2(x))).square()"),)),
    ("vae", "wider", (("hidden=48", "hidden=64"),)),
    ("vae", "larger codes", (("LATENT = 8", "LATENT = 16"),)),
    ("vae", "larger batch", (("BATCH = 16", "BATCH = 32"),)),
    (
        "vae",
        "another activation",
        (("h = F.elu(self.enc2(F.elu(self.enc1(x))))", "h = F.silu(self.enc2(F.silu(self.enc1(x))))"),),
    ),
    (
        "vae",
        "weighted divergence",
        (("return reconstruction + divergence", "return reconstruction + 0.5 * divergence"),),
    ),
    ("vae", "another seed", (("torch.manual_seed(1)", "torch.manual_seed(7)"),)),
    ("vae", "another optimizer", (("optim.Adam(", "optim.AdamW("),)),
    (
        "vae",
        "no_grad by inference mode",
        (
            ("with torch.no_grad():", "with torch.inference_mode():"),
            ("F.mse_loss(mu, code)", "F.mse_loss(mu, code.clone())"),
        ),
    ),
    (
        "vae",
        "loss in a class",
        (("def loss_function(recon", "def elbo(recon"), ("loss = loss_function(", "loss = elbo(")),
    ),
    (
        "vae",
        "logs with f-strings of its own",
        (
            (
                'print(f"epoch {epoch}: {total.item() / len(samples):.4f}")',
                'print("epoch", epoch, "loss", total.item() / len(samples))',
            ),
        ),
    ),
    ("ddp", "wider", (("width=48", "width=64"),)),
    ("ddp", "one layer more", (("nn.Linear(width, 4)", "nn.Linear(width, width), nn.GELU(), nn.Linear(width, 4)"),)),
    (
        "ddp",
        "larger batch",
        (
            (
                "torch.randn(16, 16, generator=generator), torch.randint(4, (16,)",
                "torch.randn(32, 16, generator=generator), torch.randint(4, (32,)",
            ),
        ),
    ),
    ("ddp", "another clip", (("(model.parameters(), 1.0)", "(model.parameters(), 0.5)"),)),
    ("ddp", "logs more often", (("step % 100 == 99", "step % 50 == 49"),)),
    (
        "ddp",
        "another activation",
        (("nn.Linear(16, width),\n        nn.GELU()", "nn.Linear(16, width),\n        nn.SiLU()"),),
    ),
    ("ddp", "backend chosen by torch", (('"nccl", rank=rank', "rank=rank"),)),
    (
        "ddp",
        "seeds",
        (("    torch.cuda.set_device(rank)\n", "    torch.cuda.set_device(rank)\n    torch.manual_seed(rank)\n"),),
    ),
    ("ddp", "static graph", (("gradient_as_bucket_view=True", "gradient_as_bucket_view=True, static_graph=False"),)),
    (
        "ddp",
        "a timer of the host",
        (
            ("    for step, (x, y)", "    import time\n\n    started = time.perf_counter()\n    for step, (x, y)"),
            (
                'loss {total.item() / 200:.4f}")',
                'loss {total.item() / 200:.4f} in {time.perf_counter() - started:.1f} s")',
            ),
        ),
    ),
    ("trainer", "wider", (("    hidden: int = 32\n", "    hidden: int = 48\n"),)),
    ("trainer", "larger batch", (("    batch_size: int = 8\n", "    batch_size: int = 16\n"),)),
    (
        "trainer",
        "another callback",
        (
            ("[LoggingCallback()]", "[LoggingCallback(), Counter()]"),
            (
                "class Trainer:\n",
                "class Counter(Callback):\n    steps = 0\n\n    def on_step_end(self, trainer, step, loss):\n        self.steps += 1\n\n\nclass Trainer:\n",
            ),
        ),
    ),
    ("trainer", "more workers", (("    workers: int = 2\n", "    workers: int = 3\n"),)),
    ("trainer", "another schedule", (("LinearLR(self.optimizer)", "ConstantLR(self.optimizer)"),)),
    ("trainer", "logs less often", (("    logging_steps: int = 50\n", "    logging_steps: int = 200\n"),)),
    (
        "trainer",
        "forward in parts",
        (
            (
                "        x = self.embed(ids)\n        for layer",
                "        return self.classify(self.encode(ids).mean(1))\n\n    def encode(self, ids):\n        x = self.embed(ids)\n        for layer",
            ),
            ("        return self.classify(x.mean(1))\n", "        return x\n"),
        ),
    ),
    ("trainer", "dropout", (("dropout=0.0", "dropout=0.1"),)),
    ("trainer", "one layer more", (("for _ in range(2)", "for _ in range(3)"),)),
    ("trainer", "learning rate", (("learning_rate: float = 1e-3", "learning_rate: float = 5e-4"),)),
]
