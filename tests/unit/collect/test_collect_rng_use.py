"""A watched run sees whether making a sample draws random numbers, and draws none itself."""

from __future__ import annotations

import json
import random
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils import fetch

from diagnose.collect.inside import guard
from diagnose.collect.inside.hooks.sites import Sites
from diagnose.collect.inside.probes.rng_use import DRAWS, RngUse
from diagnose.model import Site
from diagnose.source.batches.loaders import find_loaders


class Samples:
    """A dataset of three samples, for each of which something is done."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> float:
        return float(self.draw())


@pytest.fixture
def sites(monkeypatch: pytest.MonkeyPatch) -> Sites:
    for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
        monkeypatch.setattr(kind, "fetch", kind.fetch)
    found = Sites()
    RngUse(found).install(torch)
    return found


def seen(sites: Sites) -> list[dict[str, Any]]:
    lines = [json.loads(line) for _, text in sites.drain() for line in text.splitlines()]
    return [line["arguments"] for line in lines if line["kind"] == DRAWS]


@pytest.mark.parametrize(
    ("draw", "generators"),
    [(random.random, "random"), (numpy.random.random, "numpy.random"), (lambda: torch.rand(1), "torch")],
)
def test_a_draw_from_each_generator_of_the_process_is_seen(sites: Sites, draw: Any, generators: str) -> None:
    samples: Any = Samples(draw)
    list(DataLoader(samples, shuffle=True))
    assert seen(sites) == [{"dataset": "Samples", "generators": generators}]


def test_samples_that_draw_nothing_are_none(sites: Sites) -> None:
    samples: Any = Samples(numpy.random.default_rng(0).random)
    list(DataLoader(samples, shuffle=True))  # which draws an order
    assert seen(sites) == []


def test_a_generator_that_the_program_gave_numpy_is_looked_at_without_a_warning(sites: Sites) -> None:
    generators: Any = numpy.random
    before = generators.get_bit_generator()
    generators.set_bit_generator(numpy.random.PCG64(0))
    try:
        samples: Any = Samples(numpy.random.random)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            list(DataLoader(samples))
    finally:
        generators.set_bit_generator(before)
    assert [found["generators"] for found in seen(sites)] == ["numpy.random"]


def test_a_generator_that_cannot_be_read_costs_the_program_nothing(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "failures", [])
    monkeypatch.setattr(random, "getstate", None)
    samples: Any = Samples(numpy.random.random)
    assert len(list(DataLoader(samples))) == 3
    assert seen(sites) == []


def test_without_numpy_the_others_are_looked_at(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "numpy")
    list(fetched(Samples(random.random)))
    assert [found["generators"] for found in seen(sites)] == ["random"]


def test_a_batch_that_another_thread_makes_is_not_looked_at(sites: Sites) -> None:
    samples: Any = Samples(random.random)
    with ThreadPoolExecutor(1) as thread:
        assert len(thread.submit(list, DataLoader(samples)).result()) == 3
    assert seen(sites) == []


def test_an_error_of_the_dataset_and_the_end_of_a_stream_are_the_programs(sites: Sites) -> None:
    def fail() -> float:
        random.random()
        raise KeyError("no such file")

    with pytest.raises(KeyError, match="no such file"):
        list(DataLoader(Samples(fail)))  # type: ignore[arg-type]
    stream: Any = fetch._IterableDatasetFetcher(iter("ab"), False, str, False)
    assert [stream.fetch(possibly_batched_index=None) for _ in range(2)] == ["a", "b"]
    with pytest.raises(StopIteration):
        stream.fetch(None)
    assert seen(sites) == []


@pytest.mark.usefixtures("sites")
def test_to_look_draws_nothing() -> None:
    samples: Any = Samples(torch.rand(1).item)
    before = random.getstate(), str(numpy.random.get_state())
    torch.manual_seed(5)
    alone = torch.rand(1)
    torch.manual_seed(5)
    next(iter(fetched(samples)))
    assert torch.equal(torch.rand(1), alone)
    assert (random.getstate(), str(numpy.random.get_state())) == before


def fetched(samples: Any) -> Any:
    """Its batches, without the seed that a loader draws for each epoch."""
    fetcher: Any = fetch._MapDatasetFetcher(samples, True, list, False)
    return (fetcher.fetch([index]) for index in range(3))


def test_what_a_run_saw_is_what_fixers_know_of_a_loader(sites: Sites) -> None:
    samples: Any = Samples(random.random)
    list(DataLoader(samples))
    lines = [json.loads(line) for _, text in sites.drain() for line in text.splitlines()]
    recorded = [Site(each["kind"], "train.py", 2, arguments=each["arguments"]) for each in lines]
    text = "from torch.utils.data import DataLoader\nloader = DataLoader(samples)\n"
    site = Site("DataLoader", "train.py", 2, arguments={"dataset": "Samples"})
    found = find_loaders({"train.py": text}, [site, *recorded])
    assert [each.arguments["generators"] for each in found.drew] == ["random"]
    assert [loader.drew for loader in found.loaders] == list(found.drew)
