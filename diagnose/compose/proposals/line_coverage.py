"""How much of a finding a fixer is after that treats only some of its lines.

One finding may name several: of what is written out of primitives, one fixer replaces the normalisations, another the
activations. Where a finding knows what each of its lines costs, and a fixer is known to save nothing elsewhere
(`Fixer.lines_of`), the lines that its edits leave as they are, and do not call, are not its to save. What is on no
known line may be, and if none of the lines that it writes anew is known, so may the whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from diagnose.fixer import Edits, Fixer
from diagnose.model import Finding
from diagnose.source.rewrite.edited_lines import lines_reached, rewritten_lines

Left = frozenset[int]
"""Places of a finding, by their numbers, that are left as they are: their numbers stay when lines move."""
Treated = tuple[Finding, Left]
"""A finding that a fixer treats, and what it leaves alone of it."""


def left_alone(fixer: Fixer, finding: Finding, texts: Mapping[str, str], answer: Edits) -> Left:
    """The places with a known cost that an answer to a finding in these texts neither writes anew nor calls."""
    known = {number for number, place in enumerate(finding.where) if place.share is not None}
    if finding.rule not in fixer.lines_of or not known:
        return frozenset()
    lines, at = rewritten_lines(texts, answer.files), [(place.file, place.line) for place in finding.where]
    if not any(at[number] in lines for number in known):
        return frozenset()
    reached = lines_reached(lines, texts)
    return frozenset(number for number in known if at[number] not in reached)


def part_left(finding: Finding, left: Left) -> float:
    """The part (0 to 1) of a finding that may be on other lines than those left alone."""
    return max(1.0 - sum(finding.where[number].share or 0.0 for number in left), 0.0)


def promised_ns(finding: Finding, left: Left = frozenset()) -> int:
    """Return the most that a fixer can save of a finding, in ns per step, if it leaves these places alone."""
    return round(finding.recoverable_ns * part_left(finding, left))


def promised_share(finding: Finding, left: Left = frozenset()) -> float:
    """Return `promised_ns` as a share of the step that the finding was made in."""
    return finding.share * part_left(finding, left)


def promised_together_ns(treated: Sequence[Treated]) -> int:
    """Return the most that several fixers can save of a finding they share, in ns per step.

    As much as the one that promises most; those that treat parts of it, all that none of them leaves alone.
    """
    promised = [promised_ns(*one) for one in treated]
    parts = [(one, most_ns) for one, most_ns in zip(treated, promised, strict=True) if one[1]]
    if not parts:
        return max(promised)
    none_treats = frozenset.intersection(*(left for (_, left), _ in parts))
    whole = max((finding for (finding, _), _ in parts), key=lambda finding: finding.recoverable_ns)
    covered_ns = round(whole.recoverable_ns * part_left(whole, none_treats))
    return max(*promised, min(covered_ns, sum(most_ns for _, most_ns in parts)))
