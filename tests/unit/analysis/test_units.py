"""Numbers for people: three significant digits, the unit beside them, and nothing lost on the way in."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.model import Accounting, Severity
from diagnose.units import (
    format_bytes,
    format_count,
    format_ns,
    format_ranks,
    format_share,
    format_times,
    format_value,
    parse_duration_ns,
)


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0 ns"),
        (7, "7 ns"),
        (999, "999 ns"),
        (1_500, "1.50 µs"),
        (24_210_000, "24.2 ms"),
        (999_400, "999 µs"),
        (999_999, "1.00 ms"),
        (2_000_000_000, "2.00 s"),
        (59_940_000_000, "59.9 s"),
        (59_960_000_000, "1 min"),
        (71_000_000_000, "1 min 11 s"),
        (-90_000_000_000, "−1 min 30 s"),
        (600_000_000_000, "10 min"),
        (3_599_600_000_000, "1 h"),
        (3_930_000_000_000, "1 h 6 min"),
        (7_199_000_000_000, "2 h"),
        (100_000_000_000_000, "27 h 47 min"),
        (-1_500_000, "−1.50 ms"),
    ],
)
def test_durations(nanoseconds: int, text: str) -> None:
    assert format_ns(nanoseconds) == text


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "rank 3"),
        ([1, 0], "ranks 0, 1"),
        ([7, 0, 2, 3, 4], "ranks 0, 2–4, 7"),
        (range(0, 40, 2), "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 12 more"),
    ],
)
def test_ranks(ranks: Iterable[int], text: str) -> None:
    assert format_ranks(ranks) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0, "0.0 %"),
        (0.0004, "<0.1 %"),
        (0.042, "4.2 %"),
        (0.0996, "10 %"),
        (0.96, "96 %"),
        (0.9949, "99 %"),
        (0.997, "99.7 %"),
        (0.9996, ">99.9 %"),
        (1, "100 %"),
        (1.2, "120 %"),
    ],
)
def test_shares(share: float, text: str) -> None:
    assert format_share(share) == text


@pytest.mark.parametrize(
    ("number", "digits", "text"),
    [(0.25, 3, "0.25"), (4.0, 3, "4"), (13.54, 3, "13.5"), (999.6, 3, "1,000"), (1234.6, 3, "1,235"), (99.7, 2, "100")],
)
def test_counts_are_never_powers_of_ten(number: float, digits: int, text: str) -> None:
    assert format_count(number, digits) == text


def test_sizes_and_other_units() -> None:
    assert [format_bytes(size) for size in (512, 1536, 37_052_800_000)] == ["512 B", "1.50 KiB", "34.5 GiB"]
    assert format_value(1234, "count") == "1,234 count"
    assert format_value(3.14159, "GB/s") == "3.14 GB/s"
    assert format_value(1_500_000, "ns") == "1.50 ms"


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("90", 90 * 10**9),
        ("90s", 90 * 10**9),
        ("10m", 600 * 10**9),
        ("1.5 h", 5400 * 10**9),
        ("250ms", 250 * 10**6),
        ("6m20s", 380 * 10**9),
        ("1h 5min", 3900 * 10**9),
    ],
)
def test_durations_are_read_as_people_write_them(text: str, nanoseconds: int) -> None:
    assert parse_duration_ns(text) == nanoseconds


@pytest.mark.parametrize("text", ["6m20", "20 6m", "m", "", "1.5.5s", "-3s"])
def test_parts_without_a_unit_are_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration_ns(text)


@given(st.integers(0, 10**16))
def test_a_duration_can_be_typed_as_it_is_shown(nanoseconds: int) -> None:
    read = parse_duration_ns(format_ns(nanoseconds))
    assert read == pytest.approx(nanoseconds, rel=0.0086, abs=0.5)  # half a second of a minute


@given(st.text())
def test_what_is_no_duration_is_said_so(text: str) -> None:
    try:
        assert parse_duration_ns(text) >= 0
    except ValueError as error:
        assert "is not a duration" in str(error)


@pytest.mark.parametrize(
    ("share", "severity"),
    [(0.10, "high"), (0.0999, "medium"), (0.05, "medium"), (0.02, "low"), (0.0199, "note"), (0.0, "note")],
)
def test_severity_comes_from_the_share_of_the_step(share: float, severity: str) -> None:
    assert Severity.of_share(share) == severity


def test_an_accounting_is_the_sum_of_its_classes() -> None:
    accounting = Accounting(compute=5, exposed_comm=3, exposed_copy=2, idle={"input": 4, "sync": 1})
    assert (accounting.idle_ns, accounting.total_ns) == (5, 15)


def test_how_often_is_said_in_words_where_it_is_once() -> None:
    assert [format_times(number) for number in (1, 0.25, 10.333, 2)] == ["once", "0.25 times", "10.3 times", "2 times"]
