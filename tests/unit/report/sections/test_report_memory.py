"""What holds the memory, as it is printed: sums, widths, and which moment it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.measure.memory.categories import CATEGORIES
from diagnose.model import MemoryPart, MemoryPeak, MemoryTimeline, Place
from diagnose.report.sections.memory import headline, held_categories, life, memory_lines, title, weighty
from diagnose.report.style.vocabulary import MEMORY

GIB = 1 << 30


def peak(**more: object) -> MemoryPeak:
    line = Place("/home/me/training/models/transformer.py", 341, "x = self.mlp(self.norm(x))", "forward")
    parts = (
        MemoryPart("activations", 5 * GIB, 1024, line, "forward", "backward"),
        MemoryPart("left by earlier steps", 2 * GIB, 3, line, "forward", "never"),
        MemoryPart("parameters", GIB, 200, None, "before", "never"),
        MemoryPart("other", 1000, 1, None, "before", "optimizer"),
    )
    given_: dict[str, object] = {
        "device": 0,
        "at_ns": None,
        "held_bytes": 8 * GIB + 1000,
        "categories": {"activations": 5 * GIB, "left by earlier steps": 2 * GIB, "parameters": GIB, "other": 1000},
        "parts": parts,
        "reserved_bytes": 10 * GIB,
        "fragments_bytes": GIB,
        "capacity_bytes": 16 * GIB,
        "timeline": MemoryTimeline(
            None, {"parameters": (20 * GIB,) * 90, "activations": tuple(range(0, 90 * GIB, GIB))}
        ),
    }
    return MemoryPeak(**{**given_, **more})  # type: ignore[arg-type]  # the fields by their names


def test_every_category_has_a_look() -> None:
    assert set(CATEGORIES) <= set(MEMORY)
    assert len({look.mark for look in MEMORY.values()}) == len(MEMORY)


def test_slices_sum_to_what_the_allocator_has() -> None:
    parts = {part.category: part for part in held_categories(peak())}
    assert sum(part.size_bytes for part in parts.values()) == 10 * GIB
    assert (parts["fragments"].size_bytes, parts["free"].size_bytes) == (GIB, GIB - 1000)
    assert sum(part.share for part in parts.values()) == pytest.approx(1)


@given(st.integers(0, 20), st.integers(0, 20))
def test_fragments_are_never_more_than_what_is_free(reserved: int, fragments: int) -> None:
    parts = held_categories(
        peak(categories={"other": 7}, held_bytes=7, reserved_bytes=reserved, fragments_bytes=fragments)
    )
    assert all(part.size_bytes > 0 for part in parts)
    assert sum(part.size_bytes for part in parts) == max(reserved, 7)


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_no_line_is_wider_than_asked(width: int) -> None:
    assert max(len(line.plain) for line in memory_lines(peak(), "/home/me/training", width)) <= width


def test_lines_say_size_place_use_and_life() -> None:
    lines = [line.plain for line in memory_lines(peak(), "/home/me/training", 120)]
    (layer,) = [line for line in lines if "1,024 ×" in line]
    assert "5.00 GiB" in layer
    assert "models/transformer.py:341" in layer
    assert "activations, forward → backward" in layer
    assert "self.mlp" in layer
    assert any("no line known" in line and "parameters, before → held" in line for line in lines)


def test_small_parts_are_left_out() -> None:
    assert [part.category for part in weighty(peak())] == ["activations", "left by earlier steps", "parameters"]


def test_lives() -> None:
    assert [life(part) for part in peak().parts] == [
        "forward → backward",
        "forward → held",
        "before → held",
        "before → optimizer",
    ]
    assert life(MemoryPart("other", 1, 1, None, None, None)) == "in no known phase"


def test_the_title_says_which_moment_it_is() -> None:
    assert title(peak()) == "What holds the memory at its peak"
    assert title(peak(wanted_bytes=3 * GIB)) == "What held the memory when 3.00 GiB found no room"
    assert headline(peak()) == "8.00 GiB held, 10.0 GiB taken from the device, which has 16.0 GiB"
    assert headline(peak(reserved_bytes=None)) == "8.00 GiB held of the device's 16.0 GiB"


def test_the_picture_rises_with_what_is_held() -> None:
    rows = [line.plain[12:] for line in memory_lines(peak(), None, 112)][-6:]
    filled = [len(row.strip()) for row in rows]
    assert filled == sorted(filled)
    assert filled[0] < filled[-1]
    assert rows[-1].startswith(MEMORY["parameters"].mark)
