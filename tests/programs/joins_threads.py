"""Trains, then ends as programs do that wait for all threads: says which there are, and what its own hook saw run."""

import threading

import light  # noqa: F401
import torch

called: set[str] = set()


def hook(frame: object, event: str, _: object) -> None:
    if event == "call":
        called.add(frame.f_code.co_name)


def own_thread() -> None:
    print("own thread:", threading.current_thread().name)


threading.setprofile(hook)
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(60):
    loss = model(torch.ones(2, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
own = threading.Thread(target=own_thread, name="own")
own.start()
for thread in threading.enumerate():
    if thread is not threading.current_thread():
        thread.join(timeout=5)
print([thread.name for thread in threading.enumerate()], sorted(name for name in called if "thread" in name))
