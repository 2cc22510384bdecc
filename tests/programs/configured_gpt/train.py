"""Trains a small language model on tokens in a file; every global can be set by a file or on the command line."""

import os
import time
from contextlib import nullcontext

import numpy as np
import torch
from model import Config, Decoder

# what to train, and how often to look at it
out_dir = "out"
eval_interval = 5
eval_iters = 2
log_interval = 1
data_dir = "data"
# sizes
vocab_size = 61
block_size = 16
width = 32
heads = 2
layers = 2
batch_size = 4
accumulate = 3  # micro-batches per step
# optimizer
learning_rate = 1e-3
clip = 1.0
max_iters = 60
# machine
device = "cpu"
dtype = "bfloat16" if torch.cuda.is_available() and torch.cuda.is_bf16_supported() else "float16"
compile = True
exec(open("configurator.py").read())

os.makedirs(out_dir, exist_ok=True)
torch.manual_seed(1)
device_type = "cuda" if "cuda" in device else "cpu"
ptdtype = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[dtype]
ctx = nullcontext() if device_type == "cpu" else torch.amp.autocast(device_type=device_type, dtype=ptdtype)


def get_batch(split):
    tokens = np.memmap(os.path.join(data_dir, f"{split}.bin"), dtype=np.uint16, mode="r")
    starts = torch.randint(len(tokens) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy(tokens[i : i + block_size].astype(np.int64)) for i in starts])
    y = torch.stack([torch.from_numpy(tokens[i + 1 : i + 1 + block_size].astype(np.int64)) for i in starts])
    if device_type == "cuda":
        x, y = x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)
    else:
        x, y = x.to(device), y.to(device)
    return x, y


model = Decoder(Config(vocab_size, block_size, width, heads, layers))
model.to(device)
scaler = torch.amp.GradScaler(device_type, enabled=(dtype == "float16" and device_type == "cuda"))
optimizer = model.configure_optimizers(learning_rate, device_type)

if compile:
    model = torch.compile(model)


@torch.no_grad()
def estimate_loss():
    model.eval()
    found = {}
    for split in ("train", "val"):
        losses = torch.zeros(eval_iters)
        for k in range(eval_iters):
            x, y = get_batch(split)
            with ctx:
                _, loss = model(x, y)
            losses[k] = loss.item()
        found[split] = losses.mean()
    model.train()
    return found


X, Y = get_batch("train")
iter_num = 0
began = time.time()
while iter_num <= max_iters:
    if iter_num % eval_interval == 0:
        losses = estimate_loss()
        print(f"step {iter_num}: train {losses['train']:.4f}, val {losses['val']:.4f}")
        torch.save({"model": model.state_dict(), "iter_num": iter_num}, os.path.join(out_dir, "ckpt.pt"))
    for _ in range(accumulate):
        with ctx:
            logits, loss = model(X, Y)
            loss = loss / accumulate
        X, Y = get_batch("train")  # while the device is busy
        scaler.scale(loss).backward()
    if clip != 0.0:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    if iter_num % log_interval == 0:
        print(f"iter {iter_num}: loss {loss.item() * accumulate:.4f}, {(time.time() - began) * 1000:.1f} ms")
        began = time.time()
    iter_num += 1
