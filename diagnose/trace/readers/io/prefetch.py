"""The next item is made in a thread while the one before is used: for work that holds no lock of Python's meanwhile."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_Item = TypeVar("_Item")


def prefetch(items: Iterator[_Item]) -> Generator[_Item]:
    """Yield the items (never None) in their order, making one ahead of whoever asks. Errors come in their turn."""
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as pool:
        coming = pool.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = pool.submit(next, items, None)
            yield item
