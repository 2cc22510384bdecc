"""Sentences about a run that every report and screen says in the same words.

No percentage stands without what it is a percentage of, and no figure claims more than it rests on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from diagnose.model import (
    Confidence,
    Decision,
    Diagnosis,
    Evidence,
    Finding,
    Gate,
    GateResult,
    Interval,
    Mechanism,
    Severity,
    StepWork,
    Verdict,
)
from diagnose.report.style.vocabulary import CLASSES, class_look, named_count
from diagnose.report.wording.predictions import compared
from diagnose.report.wording.resolution import resolution_in_words
from diagnose.session import State
from diagnose.units import NS_PER_S, format_count, format_flops, format_ns, format_setting, format_share, format_value

MINUS = "−"
_LONGER_START = 0.2  # of the original's: less is the luck of a process


def sentence(words: str) -> str:
    """Words of a rule or fixer as a sentence: a capital, unless it begins with code, and a full stop."""
    said = begun(words)
    return said if not said or said[-1] in ".!?…:" else f"{said}."


def begun(words: str) -> str:
    """Words with a capital at their beginning, unless they begin with a name: of a file, a function, a setting."""
    return words[:1].upper() + words[1:] if words.split(" ", 1)[0].isalpha() else words


_MOSTLY_KNOWN = 0.95
"""The share of the device time of products below which their arithmetic is called a lower bound."""


def arithmetic(diagnosis: Diagnosis) -> str:
    """Return how much arithmetic a step is and how near the device's ceiling that comes; empty where it is not
    known."""
    work = diagnosis.work
    if work is None:
        return ""
    least = "" if work.modelled >= _MOSTLY_KNOWN else "at least "
    return (
        f"Matmuls: {least}{format_flops(work.flops_per_step)} per step at {format_flops(work.flops_per_s)}/s: "
        f"{format_share(work.utilisation)} of {work.ceiling_format} peak "
        f"({format_flops(work.ceiling_flops_per_s)}/s, {work.ceiling_source}); {_formats(work)}."
    )


_SOME = 0.005
"""A share of a step's operations: a format in which less is done is not named. Where it is 15 times as slow as the
others, as fp32 beside bfloat16 on an H100, so much of it takes 7 % of their time, and of the peak of all together."""


def _formats(work: StepWork) -> str:
    """The number formats in use, and their own peak where it is another one."""
    named = [form for form, share in work.in_use.items() if share >= _SOME]
    said = f"runs in {' and '.join(named)}"
    if named == [work.ceiling_format] or work.in_use_flops_per_s is None:
        return said
    whose = "whose peak is" if len(named) == 1 else "whose peak together is"
    return f"{said}, {whose} {format_flops(work.in_use_flops_per_s)}/s"


ON_PATH = {"comm": "communication", "copy": "copies", "gap": "gaps between kernels", "launch": "kernel launches"}
"""Classes of a critical path that the accounting of a step does not have under that name."""
DEVICE_ON_PATH = frozenset({"compute", "comm", "copy", "gap", "dependency"})
"""Classes of a critical path that are time of the device; all others are time of the host."""
_OF_THE_PATH = 0.05
"""A share of the critical path: less is not worth a word, as a finding of less is of no weight."""


def awaited(diagnosis: Diagnosis) -> str:
    """Return the critical path of a step in words; empty where it is unknown, or is only the device's computing."""
    path = diagnosis.critical_path or {}
    whole = sum(path.values())
    weighty = {name: took / whole for name, took in path.items() if took >= _OF_THE_PATH * whole}
    if not weighty.keys() - {"compute"}:
        return ""
    device = sum(took for name, took in path.items() if name in DEVICE_ON_PATH) / whole
    sides = (
        ("host", 1 - device, [name for name in weighty if name not in DEVICE_ON_PATH]),
        ("device", device, [name for name in weighty if name in DEVICE_ON_PATH]),
    )
    said = [
        f"{format_share(part)} {side}{_mostly(part, {name: weighty[name] for name in names})}"
        for side, part, names in sorted(sides, key=lambda one: -one[1])
        if part
    ]
    return f"A step's critical path is {' and '.join(said)}. {_beside(diagnosis, 1 - device)}"


_BUSY = 0.9
"""A share of the step: a device that works for so long beside a host on the path is about as late as the host is."""


def _beside(diagnosis: Diagnosis, host: float) -> str:
    """Return what the work beside the path costs: nothing, unless the device works all along beside a host that is on
    it."""
    spent = diagnosis.accounting
    busy = 1 - spent.idle_ns / spent.total_ns if spent.total_ns else 0.0
    if host <= 1 - _BUSY or busy < _BUSY:
        return "What runs beside it, on host or device, costs no time."
    return f"The device works beside it for {format_share(busy)} of the step: a faster host alone gives back little."


def _mostly(whole: float, parts: Mapping[str, float]) -> str:
    """The weighty classes of one side of a critical path, in parentheses; a class that is all of it has no share."""
    named = {ON_PATH.get(name) or measure(name): format_share(part) for name, part in parts.items()}
    if list(named.values()) == [format_share(whole)]:
        return f" ({next(iter(named))})"
    return f" (mostly {', '.join(f'{name} {part}' for name, part in named.items())})" if named else ""


def is_priced(finding: Finding) -> bool:
    """Whether the cost of a finding is known: a hint without a time is not one that costs nothing."""
    return finding.confidence is not Confidence.HINT or finding.estimate_ns > 0


def share(finding: Finding) -> str:
    """The share of a finding in a step; one that would be rounded up into the next severity is rounded down."""
    rounded = round(finding.share, 3)
    crosses = Severity.of_share(rounded) is not Severity.of_share(finding.share)
    return format_share(math.floor(finding.share * 1000) / 1000 if crosses else finding.share)


def by_hand(finding: Finding) -> str:
    """Return where to read what ends a finding that no fixer has an edit for."""
    return f"`diagnose explain {finding.rule}` says what helps"


_TOLD_APART = 0.01
"""The share by which what may be saved must exceed what is sure to be, to be worth a figure of its own."""


def gain(finding: Finding) -> str:
    """Return what a finding's fix could give back: time and share of a step, and the basis of the figure."""
    if not is_priced(finding):
        return "its cost is not known here"
    amount = f"{format_ns(finding.recoverable_ns)} of each step ({share(finding)})"
    if finding.possible_ns is not None and finding.possible_ns > (1 + _TOLD_APART) * finding.recoverable_ns:
        most = format_ns(finding.possible_ns)
        return f"{amount}, perhaps up to {most}" if finding.recoverable_ns else f"perhaps up to {most}, none of it sure"
    if finding.confidence is Confidence.MEASURED:
        return f"{amount}, measured"
    if finding.confidence is Confidence.BOUND:
        return f"at most {amount}"
    return f"perhaps {amount}, a hint"


def evidence(item: Evidence) -> str:
    """One number with its name: `loader wait 15.1 ms`."""
    return f"{measure(item.measure)} {value(item)}"


def measure(name: str) -> str:
    """A measure's name for people: `idle.input` is idle time, waiting for input. Of a sum, idle time is named once."""
    if "+" in name:
        parts = name.split("+")
        causes = [class_look(part.removeprefix("idle.")).label for part in parts if part.startswith("idle.")]
        several = [f"idle time ({', '.join(causes)})"] if len(causes) > 1 else []
        others = [measure(part) for part in parts if not (several and part.startswith("idle."))]
        return " and ".join([*others, *several])
    kind, _, cause = name.partition(".")
    if kind == "idle" and cause:
        return f"idle, {class_look(cause).label}"
    if name in CLASSES:
        return class_look(name).label
    return name.replace("_", " ") if name.isidentifier() else name  # a sentence may name an operator: `aten::add_`


def value(item: Evidence) -> str:
    """The value of a piece of evidence with its unit; a count needs none."""
    return format_count(item.value) if item.unit == "count" else format_value(item.value, item.unit)


def signed_percent(share: float) -> str:
    """A change with its sign, one decimal: `+58.7 %`, `−0.3 %`, `0.0 %`."""
    rounded = round(100 * share, 1)
    sign = "+" if rounded > 0 else MINUS if rounded < 0 else ""
    return f"{sign}{abs(rounded):.1f} %"


def saves(verdict: Verdict) -> str:
    """The saving with its interval; what has none may have been kept on the word of a common trial, or of a run.

    A fix of a program that does not run without it is compared with nothing, so that no resolution stands beside it.
    """
    if verdict.saving:
        return interval(verdict.saving)
    if verdict.decision is not Decision.KEPT:
        return "not measured"
    return "lets it run" if verdict.resolution is None else "with the others"


def interval(saving: Interval) -> str:
    """A saving with its interval: `+58.7 % [+57.9, +59.5]`."""
    low, high = (signed_percent(end).removesuffix(" %") for end in (saving.low, saving.high))
    return f"{signed_percent(saving.estimate)} [{low}, {high}]"


def chosen(verdict: Verdict) -> str:
    """A fix with the setting that was chosen: `loader-workers (num_workers=2)`."""
    return verdict.fixer + (f" ({format_setting(verdict.setting)})" if verdict.setting else "")


def together(state: State) -> str:
    """Return the numerics gate's answer for all kept fixes together; empty where it was not asked."""
    gate = state.final.gate if state.final else None
    return f"numbers {_equal(gate)}" if gate else ""


def interplay(state: State) -> str:
    """Return what the kept fixes save together, beside the product of their own trials; empty for a single fix."""
    said = state.final
    if said is None or said.interaction is None or said.original_ns <= 0:
        return ""
    share = said.patched_ns / said.original_ns
    single = 1 - share * math.exp(-said.interaction)
    return f"one by one, each on top of those before, the kept fixes were measured to save {format_share(single)}"


def startup(verdict: Verdict) -> str:
    """Return how much longer the patched program takes to get going, and when that is earned back. Empty if hardly."""
    if verdict.startup_ns is None:
        return ""
    before, after = verdict.startup_ns
    if after - before < max(NS_PER_S, before * _LONGER_START):
        return ""
    said = f"{format_ns(before)} → {format_ns(after)} until the end of warm-up"
    steps = verdict.pays_after_steps
    return f"{said}, earned back after {named_count(steps, 'step')}" if steps is not None else said


_PROMISES = {
    Gate.BITWISE: "bit for bit equal",
    Gate.ROUNDING: "equal up to rounding",
    Gate.TRAINING: "same training",
}


def _equal(gate: GateResult) -> str:
    """Return what was found equal or not, with what was compared, and each word once."""
    if gate.passed is None:
        return f"not verified: {gate.detail}"
    promise = _PROMISES[gate.gate]
    return (
        f"{promise}: {gate.detail.removesuffix(' are equal bit for bit')}"
        if gate.passed
        else f"not {promise}: {gate.detail}"
    )


def particulars(verdict: Verdict) -> list[tuple[str, str]]:
    """All that a verdict rests on, as names and sentences."""
    said = []
    if verdict.setting:
        said.append(("setting", format_setting(verdict.setting)))
    if verdict.saving is not None:
        said.append(("saving", f"{interval(verdict.saving)} of a step, 95 % interval{_pairs(verdict)}"))
    if prediction := compared(verdict):
        said.append(("prediction", prediction))
    if verdict.resolution is not None:
        said.append(
            ("resolution", f"{resolution_in_words(verdict.resolution)} of a step: less cannot be told from none")
        )
    if verdict.gate is not None:
        said.append(("numbers", _equal(verdict.gate)))
    if verdict.mechanism is not None:
        said.append(("mechanism", _mechanism(verdict.mechanism)))
    if start := startup(verdict):
        said.append(("start-up", start))
    if verdict.peak_memory_bytes is not None:
        before, after = (format_value(size, "bytes") for size in verdict.peak_memory_bytes)
        said.append(("peak memory", f"{before} → {after}"))
    return said


def _pairs(verdict: Verdict) -> str:
    if not verdict.pairs:
        return ""
    generations = f" in {named_count(verdict.generations, 'generation')}" if verdict.generations else ""
    return f", {named_count(verdict.pairs, 'pair')} of blocks{generations}"


def _mechanism(moved: Mechanism) -> str:
    before, after = (
        "unknown" if number is None else format_value(number, "" if moved.unit == "count" else moved.unit)
        for number in (moved.before, moved.after)
    )
    outcome = {True: "moved", False: "did not move", None: "could not be measured"}[moved.moved]
    return f"{measure(moved.measure)} {outcome}: {before} → {after}"


def final(state: State) -> str:
    """The number reported: original alone against patched alone. Empty before it was measured."""
    if state.final is None:
        return ""
    before, after = state.final.original_ns, state.final.patched_ns
    said = f"{format_ns(before)} → {format_ns(after)} per step"
    if before > 0 and after > 0:
        change = f"{format_ns(abs(before - after))} or {format_share(abs(before - after) / before)} of each step"
        said += f": {before / after:.2f} times the throughput, {change} {'saved' if after <= before else 'lost'}"
    return said
