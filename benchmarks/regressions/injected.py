"""Changes that make a program slower, each as a review would see it: program, name, and pairs of text before and after.

In kind they are what issues of training programs report: values read in the step, tensors made on the host, work kept
for a backward pass that never comes, options lost in a refactoring.
"""

from __future__ import annotations

Change = tuple[str, str, tuple[tuple[str, str], ...]]

INJECTED: list[Change] = [
    (
        "mlp",
        "accuracy read in each step",
        (
            (
                "correct += (logits.detach().argmax(1) == y).sum()",
                "correct += (logits.detach().argmax(1) == y).sum().item()",
            ),
        ),
    ),
    (
        "mlp",
        "progress with the loss in each step",
        (("            if step % 50 == 0:\n", "            if step % 50 == 0 or loss.item() > 100:\n"),),
    ),
    (
        "mlp",
        "class weights moved in each step",
        (
            ("weight = torch.ones(10, device=device)", "weight = torch.ones(10)"),
            ("weight=weight)", "weight=weight.to(device))"),
        ),
    ),
    (
        "mlp",
        "no workers",
        (("num_workers=2, pin_memory=True, persistent_workers=True", "num_workers=0, pin_memory=True"),),
    ),
    ("mlp", "workers made anew in each epoch", ((", persistent_workers=True", ""),)),
    ("mlp", "pageable memory", (("num_workers=2, pin_memory=True, persistent", "num_workers=2, persistent"),)),
    ("mlp", "optimizer without foreach", (("lr=1e-3)\n    schedule", "lr=1e-3, foreach=False)\n    schedule"),)),
    (
        "mlp",
        "average recorded",
        (
            ("@torch.no_grad()\ndef update", "def update"),
            ("old.lerp_(new, 1 - decay)", "old.data = old * decay + new * (1 - decay)"),
        ),
    ),
    (
        "mlp",
        "forward twice for the accuracy",
        (("(logits.detach().argmax(1) == y)", "(model(x).detach().argmax(1) == y)"),),
    ),
    (
        "mlp",
        "losses kept with their graphs",
        (
            ("    seen = 0\n", "    seen = 0\n    losses = []\n"),
            ("            loss.backward()\n", "            losses.append(loss)\n            loss.backward()\n"),
        ),
    ),
    (
        "cnn",
        "mixed precision lost in training",
        (
            (
                '            with torch.autocast("cuda", dtype=torch.bfloat16):\n                logits = model(images_)\n                loss = F.cross_entropy(logits, labels)\n',
                "            logits = model(images_)\n            loss = F.cross_entropy(logits, labels)\n",
            ),
        ),
    ),
    (
        "cnn",
        "validation recorded",
        (("    with torch.no_grad():\n        for images, labels", "    if True:\n        for images, labels"),),
    ),
    ("cnn", "running loss read", (("running += loss.detach()", "running += loss.item()"),)),
    ("cnn", "running loss keeps its graph", (("running += loss.detach()", "running = running + loss"),)),
    ("cnn", "benchmark mode off", (("torch.backends.cudnn.benchmark = True\n", ""),)),
    (
        "cnn",
        "deterministic",
        (
            (
                "torch.backends.cudnn.benchmark = True\n",
                "torch.backends.cudnn.benchmark = True\ntorch.backends.cudnn.deterministic = True\n",
            ),
        ),
    ),
    (
        "cnn",
        "images in double precision",
        (
            ("torch.randn(count, 3, 16, 16)", "torch.randn(count, 3, 16, 16).double()"),
            ("logits = model(images_)", "logits = model(images_.float())"),
        ),
    ),
    (
        "cnn",
        "copies wait",
        (
            (
                "            images_ = images_.to(device, non_blocking=True, memory_format=torch.channels_last)\n            labels = labels.to(device, non_blocking=True)",
                "            images_ = images_.to(device, memory_format=torch.channels_last)\n            labels = labels.to(device)",
            ),
        ),
    ),
    (
        "cnn",
        "normalization on the device with constants of the host",
        (
            (
                '            with torch.autocast("cuda", dtype=torch.bfloat16):\n                logits = model(images_)\n',
                '            mean = torch.tensor([0.5, 0.5, 0.5], device=device).view(1, 3, 1, 1)\n            images_ = images_ - mean\n            with torch.autocast("cuda", dtype=torch.bfloat16):\n                logits = model(images_)\n',
            ),
        ),
    ),
    (
        "cnn",
        "loop over samples in the loss",
        (
            (
                "loss = F.cross_entropy(logits, labels)\n",
                "loss = torch.stack([F.cross_entropy(one, label) for one, label in zip(logits, labels)]).mean()\n",
            ),
        ),
    ),
    (
        "gpt",
        "attention written out",
        (
            (
                "y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)",
                'att = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))\n        mask = torch.tril(torch.ones(T, T, device=x.device))\n        att = F.softmax(att.masked_fill(mask == 0, float("-inf")), dim=-1)\n        y = att @ v',
            ),
        ),
    ),
    ("gpt", "positions made on the host", (("torch.arange(T, device=idx.device)", "torch.arange(T).to(idx.device)"),)),
    ("gpt", "optimizer not fused", ((", fused=True", ""),)),
    (
        "gpt",
        "evaluation recorded",
        (("@torch.no_grad()\ndef estimate", "def estimate"), ("losses[k] = loss", "losses[k] = loss.detach()")),
    ),
    (
        "gpt",
        "evaluation reads each loss",
        (
            ("losses = torch.zeros(eval_iters, device=device)", "losses = torch.zeros(eval_iters)"),
            ("losses[k] = loss", "losses[k] = loss.item()"),
        ),
    ),
    ("gpt", "TF32 lost", (('torch.set_float32_matmul_precision("high")\n', ""),)),
    (
        "gpt",
        "gradient norm read",
        (
            (
                "        torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)\n",
                "        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)\n        if not math.isfinite(norm):\n            continue\n",
            ),
        ),
    ),
    (
        "gpt",
        "gradient norm by hand",
        (
            (
                "        torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)\n",
                "        norm = sum(p.grad.norm() ** 2 for p in model.parameters()) ** 0.5\n        for p in model.parameters():\n            p.grad.mul_(torch.clamp(grad_clip / norm, max=1.0))\n",
            ),
        ),
    ),
    (
        "gpt",
        "logits in float32 copies",
        (
            (
                "logits = self.lm_head(self.ln_f(x))",
                "logits = self.lm_head(self.ln_f(x)).clone().contiguous().double().float()",
            ),
        ),
    ),
    ("gpt", "evaluation before each step", (("if it % eval_interval == 0:", "if it % 1 == 0:"),)),
    ("vae", "noise made on the host", (("torch.randn_like(std)", "torch.randn(std.shape).to(std.device)"),)),
    (
        "vae",
        "teacher recorded",
        (
            ("        with torch.no_grad():\n            code = teacher(x)\n", "        code = teacher(x)\n"),
            ("F.mse_loss(mu, code)", "F.mse_loss(mu, code.detach())"),
        ),
    ),
    (
        "vae",
        "mean moved in each step",
        (
            ("mean = torch.full((SIZE,), 0.5, device=device)", "mean = torch.full((SIZE,), 0.5)"),
            ("x = x - mean", "x = x - mean.to(device)"),
        ),
    ),
    ("vae", "total read in each step", (("total += loss.detach()", "total += loss.item()"),)),
    (
        "vae",
        "check for NaN",
        (
            (
                "        optimizer.zero_grad()\n",
                '        if torch.isnan(loss):\n            raise ValueError("loss is NaN")\n        optimizer.zero_grad()\n',
            ),
        ),
    ),
    (
        "vae",
        "loss over dimensions one by one",
        (
            (
                'reconstruction = F.mse_loss(recon, x, reduction="sum")',
                'reconstruction = sum(F.mse_loss(recon[:, i], x[:, i], reduction="sum") for i in range(SIZE))',
            ),
        ),
    ),
    (
        "vae",
        "anomaly detection",
        (("torch.manual_seed(1)\n", "torch.manual_seed(1)\ntorch.autograd.set_detect_anomaly(True)\n"),),
    ),
    (
        "vae",
        "decoder runs twice",
        (("return self.decode(z), mu, logvar", "self.decode(mu)\n        return self.decode(z), mu, logvar"),),
    ),
    (
        "vae",
        "outputs kept",
        (
            (
                "    total = torch.zeros((), device=device)\n",
                "    total = torch.zeros((), device=device)\n    outputs = []\n",
            ),
            ("        total += loss", "        outputs.append(recon.detach())\n        total += loss"),
        ),
    ),
    (
        "vae",
        "codes kept on the host",
        (
            ("        total += loss", "        codes.append(mu.detach().cpu())\n        total += loss"),
            (
                "    total = torch.zeros((), device=device)\n",
                "    total = torch.zeros((), device=device)\n    codes = []\n",
            ),
        ),
    ),
    (
        "ddp",
        "gradients reduced in each backward pass",
        (
            (
                "        with contextlib.nullcontext() if last else model.no_sync():\n",
                "        with contextlib.nullcontext():\n",
            ),
        ),
    ),
    (
        "ddp",
        "looks for unused parameters",
        (("gradient_as_bucket_view=True", "gradient_as_bucket_view=True, find_unused_parameters=True"),),
    ),
    ("ddp", "gradients copied into buckets", ((", gradient_as_bucket_view=True", ""),)),
    (
        "ddp",
        "loss reduced in each step",
        (
            (
                "        total += loss.detach()\n",
                "        reported = loss.detach().clone()\n        dist.all_reduce(reported)\n        total += reported\n",
            ),
        ),
    ),
    (
        "ddp",
        "barrier in each step",
        (
            (
                "        if last:\n            nn.utils",
                "        if last:\n            dist.barrier()\n            nn.utils",
            ),
        ),
    ),
    ("ddp", "small buckets", (("gradient_as_bucket_view=True", "gradient_as_bucket_view=True, bucket_cap_mb=0.001"),)),
    (
        "ddp",
        "loss printed by the first rank",
        (
            (
                "        total += loss.detach()\n",
                '        total += loss.detach()\n        if rank == 0 and loss.item() > 100:\n            print("diverged")\n',
            ),
        ),
    ),
    (
        "ddp",
        "synchronized for timing",
        (
            (
                "        if last:\n            nn.utils",
                "        torch.cuda.synchronize()\n        if last:\n            nn.utils",
            ),
        ),
    ),
    (
        "ddp",
        "labels copied and waited for",
        (("x.to(device, non_blocking=True), y.to(device, non_blocking=True)", "x.to(device), y.to(device)"),),
    ),
    (
        "ddp",
        "gradients clipped one by one",
        (
            (
                "            nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n",
                "            for parameter in model.parameters():\n                nn.utils.clip_grad_norm_([parameter], 1.0)\n",
            ),
        ),
    ),
    ("trainer", "not compiled", (("torch.compile(self.model) if args.compile else self.model", "self.model"),)),
    (
        "trainer",
        "graph break by a print",
        (("        x = self.embed(ids)\n", '        x = self.embed(ids)\n        print(end="")\n'),),
    ),
    (
        "trainer",
        "graph break by a value",
        (
            (
                "        return self.classify(x.mean(1))\n",
                "        if x.abs().max().item() > 1e6:\n            x = x.clamp(-1e6, 1e6)\n        return self.classify(x.mean(1))\n",
            ),
        ),
    ),
    (
        "trainer",
        "compiled anew for each step",
        (
            (
                "    def forward(self, ids):\n",
                "    calls = 0\n\n    def forward(self, ids):\n        self.calls += 1\n        ids = ids * 1 if self.calls % 2 else ids + 0\n",
            ),
        ),
    ),
    ("trainer", "mixed precision off", (("    bf16: bool = True\n", "    bf16: bool = False\n"),)),
    (
        "trainer",
        "callback reads the loss",
        (
            (
                "        if step % trainer.args.logging_steps == 0:\n",
                "        value = loss.item()\n        if step % trainer.args.logging_steps == 0 and value == value:\n",
            ),
        ),
    ),
    ("trainer", "no workers", (("    workers: int = 2\n", "    workers: int = 0\n"),)),
    (
        "trainer",
        "metrics on the host",
        (
            (
                "(logits.detach().argmax(-1) == labels).sum()",
                "(logits.detach().argmax(-1).cpu() == labels.cpu()).sum().to(self.device)",
            ),
        ),
    ),
    ("trainer", "logs in each step", (("    logging_steps: int = 50\n", "    logging_steps: int = 1\n"),)),
    (
        "trainer",
        "batch moved twice",
        (("tensor.to(self.device, non_blocking=True) for", "tensor.to(self.device).cpu().to(self.device) for"),),
    ),
]
