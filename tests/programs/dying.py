"""Dies of lack of memory in its second step, on a stand-in for a device whose allocator holds what is listed here."""

import sys
from types import SimpleNamespace

import torch

MIB = 1 << 20
CALL = {"filename": "/x/site-packages/torch/nn/modules/module.py", "line": 1790, "name": "_call_impl"}
observers = []


def frames(marker: str) -> list[dict[str, object]]:
    """The stack of a line of this file, innermost first, as the allocator would have noted it."""
    with open(__file__) as source:
        line = next(number for number, text in enumerate(source, 1) if text.rstrip().endswith(f"# {marker}"))
    return [{"filename": __file__, "line": line, "name": "forward"}, CALL]


def snapshot() -> dict[str, object]:
    held = [(4096, 5, "weights"), (16 * MIB, 300, "layer"), (512 * MIB, 90, "layer")]
    blocks = [
        {"address": at, "size": size * MIB, "requested_size": size * MIB, "state": "active_allocated"}
        | {"frames": [] if name == "weights" else frames(name)}
        for at, size, name in held
    ]
    segment = {"device": 0, "address": 0, "total_size": 700 * MIB, "allocated_size": 395 * MIB, "blocks": blocks}
    segment |= {"active_size": 395 * MIB, "stream": 0}
    return {"segments": [segment], "device_traces": [[]]}


class OnDevice(torch.nn.Parameter):
    """A parameter that says of itself to be on the device."""

    device = SimpleNamespace(type="cuda")

    def data_ptr(self) -> int:
        return 4096


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = OnDevice(torch.ones(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.weight).relu()  # layer


def use_device() -> None:
    torch._C._cuda_attach_out_of_memory_observer = observers.append
    torch._C._cuda_isHistoryEnabled = lambda: False
    torch.cuda.memory._record_memory_history = lambda *_, **__: None
    torch.cuda.memory._snapshot = snapshot
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_properties = lambda _: SimpleNamespace(total_memory=1000 * MIB)
    for call, _ in torch.cuda._queued_calls:
        if "diagnose" in call.__module__:
            call()


def take(size: int) -> None:
    for observer in observers:
        observer(0, size, 1000 * MIB, 5 * MIB)
    raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size / MIB:.2f} MiB.")  # asks


def train() -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(int(sys.argv[1])):
        loss = model(torch.ones(2, 8)).sum()
        if step == 1:
            take(305 * MIB)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


use_device()
train()
