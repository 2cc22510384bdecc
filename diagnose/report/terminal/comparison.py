"""A comparison of two runs: as text for a terminal, and as JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from rich.text import Text

from diagnose.comparison import Comparison, StepChange, TimeChange, TimeSpent
from diagnose.model import SCHEMA, Finding
from diagnose.report.style.line_wrapping import wrap
from diagnose.report.style.styled_text import heading, print_sections, styled
from diagnose.report.style.vocabulary import BAD, GOOD, MUTED, class_look, named_count
from diagnose.units import format_bytes, format_ns, format_share

_MOST_ROWS = 12
_NOISE_WORDS = re.compile(r"^void |at::native::|\(anonymous namespace\)::")
"""What half of all kernels' names begin with, and what tells none of them apart."""
_LABEL = 22
_COLOURS = {"slower": BAD, "faster": GOOD}


def render(comparison: Comparison, width: int, colour: bool = False) -> str:
    """The comparison in lines of at most `width` columns; the names of kernels are cut. Colour is ANSI escapes."""
    sections = [
        _head(comparison, width),
        _classes(comparison.classes),
        _moved("Kernels", comparison.kernels, width),
        _moved("Operators", comparison.operators, width),
        _findings(comparison, width),
        _notes(comparison, width),
    ]
    return print_sections(sections, colour)


def to_json(comparison: Comparison) -> str:
    """One JSON object: the two portraits under `before` and `after`, and what moved."""
    plain: dict[str, Any] = {"schema": SCHEMA, **msgspec.to_builtins(comparison)}
    if comparison.step is not None:
        plain["step"] |= {"change": comparison.step.change, "verdict": comparison.step.verdict}
    return msgspec.json.format(msgspec.json.encode(plain), indent=2).decode() + "\n"


def sentence(step: StepChange) -> str:
    """`412 ms → 398 ms, 3.4 % faster (two runs must differ by 1.0 % to be told apart)`."""
    times = f"{format_ns(step.before_ns)} → {format_ns(step.after_ns)}"
    noise = f"two runs must differ by {format_share(step.noise)} to be told apart"
    if step.verdict == "no change":
        return f"{times}, no change: {_signed(step.change)} ({noise})"
    return f"{times}, {format_share(abs(step.change))} {step.verdict} ({noise})"


def _head(comparison: Comparison, width: int) -> list[Text]:
    before, after = comparison.before, comparison.after
    lines = [styled(f"{_source(before.source)} → {_source(after.source)}", "bold")]
    if comparison.step is None:
        lines.append(styled("They cannot be compared:", "bold"))
        return lines + [styled(f"  {line}") for why in comparison.obstacles for line in wrap(why, width - 2)]
    said = wrap(f"Step {sentence(comparison.step)}", width)
    lines += [styled(line, _COLOURS.get(comparison.step.verdict, "")) for line in said]
    if before.peak_memory_bytes is not None and after.peak_memory_bytes is not None:
        change = after.peak_memory_bytes - before.peak_memory_bytes
        more = "" if not change else f", {format_bytes(abs(change))} {'more' if change > 0 else 'less'}"
        peaks = f"{format_bytes(before.peak_memory_bytes)} → {format_bytes(after.peak_memory_bytes)}"
        lines.append(styled(f"Peak memory {peaks}{more}"))
    return lines


def _classes(classes: Sequence[TimeChange]) -> list[Text]:
    if not classes:
        return []
    return [
        heading("Where a step's time goes", "mean traced step: before, after", _LABEL + 39),
        *_rows(classes, lambda name: class_look(name).label, _LABEL),
    ]


def _moved(title: str, moved: Sequence[TimeChange], width: int) -> list[Text]:
    if not moved:
        return []
    label = max(width - 42, _LABEL)
    lines = [
        heading(f"{title} that moved", "before, after", width),
        *_rows(moved[:_MOST_ROWS], lambda name: _cut(name, label), label),
    ]
    if len(moved) > _MOST_ROWS:
        lines.append(styled(f"  and {named_count(len(moved) - _MOST_ROWS, 'more')[:-1]}", MUTED))
    return lines


def _rows(moved: Iterable[TimeChange], labelled: Callable[[str], str], label: int) -> list[Text]:
    lines = []
    for one in moved:
        line = styled(f"  {labelled(one.name):<{label}}{_time(one.before):>11}{_time(one.after):>11}")
        line.append(f"{_delta(one):>15}", BAD if one.delta_ns > 0 else GOOD if one.delta_ns < 0 else MUTED)
        lines.append(line)
    return lines


def _time(spent: TimeSpent | None) -> str:
    return "–" if spent is None else format_ns(spent.ns)


def _delta(moved: TimeChange) -> str:
    if moved.before is None:
        return "new"
    if moved.after is None:
        return "gone"
    return f"{'+' if moved.delta_ns >= 0 else '−'}{format_ns(abs(moved.delta_ns))}"


def _findings(comparison: Comparison, width: int) -> list[Text]:
    if comparison.step is None:
        return []
    lines: list[Text] = []
    for title, findings in (("Findings resolved", comparison.resolved), ("New findings", comparison.new)):
        if findings:
            lines += [heading(title, "", width), *(line for finding in findings for line in _finding(finding, width))]
    lasting = [f"{now.rule} ({format_ns(was.recoverable_ns)} → {format_ns(now.recoverable_ns)})"
               for was, now in comparison.lasting]  # fmt: skip
    if lasting:
        lines += [
            heading("Still there", "", width),
            *(styled(f"  {line}") for line in wrap(", ".join(lasting), width - 2)),
        ]
    return lines


def _finding(finding: Finding, width: int) -> list[Text]:
    cost = f", {format_ns(finding.recoverable_ns)} a step" if finding.recoverable_ns else ""
    said = f"{finding.rule}{cost}: {finding.summary}"
    return [styled(f"  {line}") for line in wrap(said, width - 2)]


def _notes(comparison: Comparison, width: int) -> list[Text]:
    return [styled(line, MUTED) for note in comparison.notes for line in wrap(f"Note: {note}.", width)]


def _source(source: Sequence[str]) -> str:
    return source[0] if len(source) == 1 else f"{source[0]} and {len(source) - 1} more" if source else "a baseline"


def _signed(share: float) -> str:
    return f"{'+' if share >= 0 else '−'}{format_share(abs(share))}"


def _cut(name: str, width: int) -> str:
    name = _NOISE_WORDS.sub("", name)
    return name if len(name) < width else f"{name[: width - 2]}…"
