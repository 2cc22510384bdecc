"""The wrapper that copies a batch ahead: the order of copies, waits and batches, and the numbers on a CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from diagnose.fixer import Edits
from diagnose.plugins import load

FIXER = load().fixers["prefetch-to-device"]
PATCHED = next(example.after for example in FIXER.examples if example.after is not None)


def prefetcher(module: Any) -> Any:
    """The class that the fixer writes, over a stand-in for torch."""
    body = PATCHED[PATCHED.index("class DevicePrefetcher") : PATCHED.index("\ndevice = ")]
    names: dict[str, Any] = {"torch": module}
    exec(body, names)
    return names["DevicePrefetcher"]


class Fake:
    """A device, streams and tensors that note what is done."""

    def __init__(self) -> None:
        self.log: list[str] = []
        fake = self

        class Tensor:
            def __init__(self, name: str) -> None:
                self.name = name

            def to(self, _device: object, *, non_blocking: bool) -> Tensor:
                assert non_blocking
                assert fake.current == "side"
                fake.log.append(f"copy {self.name}")
                return Tensor(self.name + "'")

            def record_stream(self, stream: SimpleNamespace) -> None:
                assert stream.name == "main"
                fake.log.append(f"keep {self.name}")

        self.current = "main"
        self.events = 0
        self.Tensor = Tensor
        self.device = lambda name: SimpleNamespace(type=name)
        self.cuda = SimpleNamespace(
            Stream=lambda _device: SimpleNamespace(name="side", record_event=self._event),
            stream=self._on,
            current_stream=lambda _device: SimpleNamespace(name=self.current, wait_event=self._wait),
        )

    def _event(self) -> int:
        self.events += 1
        return self.events

    def _wait(self, event: int) -> None:
        self.log.append(f"wait {event}")

    @contextlib.contextmanager
    def _on(self, stream: SimpleNamespace) -> Iterator[None]:
        self.current = stream.name
        yield
        self.current = "main"


def test_each_batch_is_copied_while_the_one_before_is_computed_on() -> None:
    fake = Fake()
    batches = [(fake.Tensor(f"x{n}"), {"y": fake.Tensor(f"y{n}"), "n": n}) for n in range(3)]
    for x, more in prefetcher(fake)(batches, "cuda"):
        assert fake.current == "main"
        fake.log.append(f"compute {x.name} {more['y'].name} {more['n']}")
    ready = [["wait 1", "keep x0'", "keep y0'"], ["wait 2", "keep x1'", "keep y1'"], ["wait 3", "keep x2'", "keep y2'"]]
    assert fake.log == [
        *["copy x0", "copy y0"],
        *["copy x1", "copy y1", *ready[0], "compute x0' y0' 0"],
        *["copy x2", "copy y2", *ready[1], "compute x1' y1' 1"],
        *[*ready[2], "compute x2' y2' 2"],
    ]


@pytest.mark.parametrize("count", [0, 1])
def test_few_batches_or_none_are_no_trouble(count: int) -> None:
    fake = Fake()
    assert len(list(prefetcher(fake)([fake.Tensor("x")] * count, "cuda"))) == count


def test_without_a_cuda_device_batches_pass_as_they_are() -> None:
    data = TensorDataset(torch.arange(8.0), torch.arange(8))
    loader = DataLoader(data, batch_size=3)
    wrapped = prefetcher(torch)(loader, "cpu")
    assert len(wrapped) == 3
    for one, two in zip(loader, wrapped, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize(
    ("loop", "wrapped"),
    [
        ("for x, y in loader:", "for x, y in DevicePrefetcher(loader, device):"),
        ("for i, (x, y) in enumerate(loader, 1):", "for i, (x, y) in enumerate(DevicePrefetcher(loader, device), 1):"),
        ("for x, y in tqdm(loader):", "for x, y in tqdm(DevicePrefetcher(loader, device)):"),
    ],
)
def test_loops_of_several_kinds_are_wrapped(loop: str, wrapped: str) -> None:
    example = next(example for example in FIXER.examples if example.after is not None)
    text = example.before.replace("for i, (x, y) in enumerate(loader):", loop)
    answer = FIXER.rewrite(example.request(text))
    assert isinstance(answer, Edits)
    assert wrapped in answer.files["train.py"]
    compile(answer.files["train.py"], "train.py", "exec")


@pytest.mark.parametrize("device", [None, "cpu"])
def test_batches_pass_as_they_are_where_no_device_is_named_that_copies_run_beside(device: str | None) -> None:
    batches = [[torch.zeros(2), torch.ones(2)], [torch.ones(2), torch.zeros(2)]]
    ahead = prefetcher(torch)(batches, device)
    assert all(one is other for one, other in zip(ahead, batches, strict=True))
    assert len(ahead) == 2


@pytest.mark.parametrize(
    "loop",
    ["enumerate(iter(queue.get, None))", "enumerate(tqdm(desc=name, iterable=loader))", "enumerate(iter(*given))"],
)
def test_what_gives_no_batches_itself_is_not_wrapped(loop: str) -> None:
    example = next(example for example in FIXER.examples if example.after is not None)
    text = example.before.replace("enumerate(loader)", loop)
    assert not isinstance(FIXER.rewrite(example.request(text)), Edits)
