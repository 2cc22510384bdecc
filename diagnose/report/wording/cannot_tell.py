"""The data that rules lacked to decide, with the rules that lacked it."""

from __future__ import annotations

import re

from diagnose.report.style.vocabulary import named_count
from diagnose.report.wording.run_title import CPU_ONLY, device, holds_only_memory
from diagnose.session import State

_FIGURES = re.compile(r"\d[\d.,]*")
_OF_DEVICES = re.compile(r"device's work|of the device\b")


def unsure(state: State) -> dict[str, str]:
    """Return the lacking data, each with the rules that lacked it in one text: `a-rule, b-rule`.

    All that a run on the CPU alone lacks for want of a device is one thing, whose rules are counted and not named:
    nothing can be done about it. What ranks lack alike, each with figures of its own, is said with those of the first.
    A recording of memory alone is asked nothing else.
    """
    if holds_only_memory(state.diagnosis):
        return {}
    lacking: dict[str, list[str]] = {}
    alike: dict[tuple[str, str], str] = {}
    for answer in state.diagnosis.cannot_tell if state.diagnosis else ():
        if alike.setdefault((answer.rule, _FIGURES.sub("", answer.needs)), answer.needs) == answer.needs:
            lacking.setdefault(answer.needs, []).append(answer.rule)
    about_devices: list[str] = []
    if device(state) == CPU_ONLY:
        for needs in [needs for needs in lacking if _OF_DEVICES.search(needs)]:
            about_devices += lacking.pop(needs)
    said = {needs: ", ".join(rules) for needs, rules in lacking.items()}
    if about_devices:
        skipped = named_count(len(about_devices), "GPU rule")
        said = {f"{skipped} skipped (CPU-only run)": "", **said}
    return said
