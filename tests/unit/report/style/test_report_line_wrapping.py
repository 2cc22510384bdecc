"""Prose in lines: no line is wider than a terminal shows it, and no figure is parted from its unit."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from diagnose.report.style.line_wrapping import wrap


@pytest.mark.parametrize(
    "words", ["the loader waits for 数据加载器 in each of its steps " * 3, "数据加载器" * 20, "plain words " * 20]
)
def test_a_line_has_no_more_columns_than_asked(words: str) -> None:
    lines = wrap(words, 30)
    assert max(map(cell_len, lines)) <= 30
    assert "".join("".join(lines).split()) == "".join(words.split())


def test_a_figure_stays_with_its_unit() -> None:
    assert wrap("the step takes about 24.2 ms", 25) == ["the step takes about", "24.2 ms"]
    assert wrap("all of it takes about 2 min 30 s", 28) == ["all of it takes about", "2 min 30 s"]
    assert wrap("all of it takes about 1 h 5 min", 26) == ["all of it takes about", "1 h 5 min"]
