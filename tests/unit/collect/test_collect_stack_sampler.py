"""Looking at another thread's stack leaves the interpreter as it was."""

from __future__ import annotations

import gc
import json
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from diagnose.collect.inside.modes import watch
from diagnose.collect.inside.probes.stack_sampler import Sampler
from diagnose.collect.inside.probes.stack_watch import StackWatch
from diagnose.collect.inside.source_ownership import Ownership

DEPTH = 50


@contextmanager
def deep_thread() -> Iterator[threading.Thread]:
    """A thread that waits, many calls deep."""
    there, leave = threading.Event(), threading.Event()

    def descend(left: int) -> None:
        if left:
            descend(left - 1)
        else:
            there.set()
            leave.wait()

    thread = threading.Thread(target=descend, args=(DEPTH,))
    thread.start()
    there.wait()
    try:
        yield thread
    finally:
        leave.set()
        thread.join()


@contextmanager
def collections_seen() -> Iterator[list[str]]:
    """Garbage collections, with Python as eager to collect as it can be."""
    seen: list[str] = []
    threshold = gc.get_threshold()
    gc.callbacks.append(lambda phase, _: seen.append(phase))
    gc.set_threshold(1)
    try:
        yield seen
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.pop()


def test_a_sample_is_the_whole_stack_innermost_first() -> None:
    with deep_thread() as thread:
        sampler = Sampler(thread.ident or 0)
        sampler.sample()
    (_, stacks), (_, samples) = sampler.drain()
    frames = json.loads(stacks)["f"]
    assert [frame[2].rpartition(".")[2] for frame in frames].count("descend") == DEPTH + 1
    assert len(json.loads(samples)["t"]) == 1


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="collections wait for the next instruction since Python 3.12")
def test_no_collection_begins_while_frames_of_another_thread_are_read() -> None:
    with deep_thread() as thread, collections_seen() as seen:
        sampler = Sampler(thread.ident or 0)
        look, within = sampler._look, []

        def watched_look() -> None:
            before = len(seen)
            look()
            within.append(len(seen) - before)

        sampler._look = watched_look  # type: ignore[method-assign]
        sampler.sample()
        [[] for _ in range(10)]
    assert within == [0]
    assert seen  # it does collect outside of a sample


@pytest.mark.parametrize("enabled", [True, False])
def test_the_program_keeps_its_setting_of_the_collector(enabled: bool) -> None:
    try:
        if not enabled:
            gc.disable()
        with deep_thread() as thread:
            Sampler(thread.ident or 0).sample()
        assert gc.isenabled() == enabled
    finally:
        gc.enable()


def test_what_the_watcher_does_for_itself_is_no_sample_of_the_program() -> None:
    source = "def step_ended(callback):\n    callback()\n"
    names: dict[str, Callable[..., None]] = {}
    exec(compile(source, watch.Watch.step_ended.__code__.co_filename, "exec"), names)
    sampler = Sampler(threading.get_ident())
    names["step_ended"](sampler._look)
    sampler._look()
    (_, _), (_, samples) = sampler.drain()
    assert len(json.loads(samples)["s"]) == 1


def test_a_stack_that_stands_still_has_its_lines_and_no_move() -> None:
    with deep_thread() as thread:
        assert thread.ident is not None
        watch = StackWatch(thread.ident, Ownership())
        watch.sample()
        moved_ns = watch.moved_ns
        watch.sample()
        assert watch.moved_ns == moved_ns
        expected = [
            (frame.f_code.co_filename, line, frame.f_code.co_name)
            for frame, line in traceback.walk_stack(sys._current_frames()[thread.ident])
        ]
    assert [(file, line, name.rpartition(".")[2]) for file, line, name, _ in watch.stack()] == expected
