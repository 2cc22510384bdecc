"""Changes of a profile that the first finding must not depend on, such as step marks, names and the machine's speed.

    profile = json.loads(text)
    for perturbation in PERTURBATIONS:
        other = perturbation.change(profile)      # a new profile; the events that changed are copies

Each takes an export of torch.profiler, decoded, and leaves it as it is. What a run was like stays; what is known of it,
or how long all of it took, changes. Predictions in time move with the latter, and rules that know a device's rates may
say something else of another device, with a reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Event = dict[str, Any]
Profile = dict[str, Any]

_STEP = "ProfilerStep#"
_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_ANNOTATIONS = frozenset({"user_annotation", "gpu_user_annotation"})
_TIMES = ("ts", "dur")
_ARROWS = frozenset({"ac2g", "fwdbwd"})
_SHAPES = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs", "Input Dims Start")
_GRIDS = ("grid", "block", "blocks per SM", "warps per SM", "est. achieved occupancy %", "registers per thread")
_OTHER_NAMES = (
    (re.compile(r"nvjet_sm90_tst_|nvjet_tst_"), "cutlass_80_tensorop_bf16_s16816gemm_bf16_"),
    (re.compile(r"nvjet_sm90_hsh_|nvjet_hsh_"), "cutlass_80_tensorop_f16_s16816gemm_f16_"),
    (re.compile(r"sm90_xmma_"), "sm80_xmma_"),
)


@dataclass(frozen=True)
class Perturbation:
    """One change of a profile."""

    name: str
    change: Callable[[Profile], Profile]


def _with(profile: Profile, events: list[Event]) -> Profile:
    return {**profile, "traceEvents": events}


def _only(profile: Profile, keep: Callable[[Event], bool]) -> Profile:
    return _with(profile, [event for event in profile["traceEvents"] if keep(event)])


def _each(profile: Profile, change: Callable[[Event], Event]) -> Profile:
    return _with(profile, [change(event) for event in profile["traceEvents"]])


def _is_mark(event: Event) -> bool:
    return str(event.get("name", "")).startswith(_STEP)


def _without_marks(profile: Profile) -> Profile:
    """Take the step marks away, as a profiler without a schedule records it."""
    return _only(profile, lambda event: not _is_mark(event))


def _marked_by_annotations(profile: Profile) -> Profile:
    """Mark steps by ranges, as `record_function("train_step")` around each step does."""
    return _each(profile, lambda event: {**event, "name": "train_step"} if _is_mark(event) else event)


def _without_frames(profile: Profile) -> Profile:
    """Without the calls, but as slow as writing them down made it: what the profiler cost is underrated then."""
    return _only(profile, lambda event: event.get("cat") != "python_function")


def _without_arrows(profile: Profile) -> Profile:
    """Take the flow arrows away: some exporters tie launches and kernels by correlation alone."""
    return _only(profile, lambda event: event.get("cat") not in _ARROWS)


def _without_arguments(*names: str) -> Callable[[Profile], Profile]:
    def change(event: Event) -> Event:
        arguments = event.get("args")
        if not isinstance(arguments, dict) or not any(name in arguments for name in names):
            return event
        return {**event, "args": {name: value for name, value in arguments.items() if name not in names}}

    return lambda profile: _each(profile, change)


def _stretched(factor: float) -> Callable[[Profile], Profile]:
    """Stretch all times by a factor, as a slower machine would record them."""

    def change(event: Event) -> Event:
        return {**event, **{name: float(event[name]) * factor for name in _TIMES if name in event}}

    def all_events(profile: Profile) -> Profile:
        # Times are microseconds since some boot: from the first event on, so that none leaves what a clock can hold.
        first = min((float(event["ts"]) for event in profile["traceEvents"] if event.get("ph") == "X"), default=0.0)

        def moved(event: Event) -> Event:
            return {**event, "ts": float(event["ts"]) - first} if "ts" in event else event

        return _each(_each(profile, moved), change)

    return all_events


def _renamed_kernels(profile: Profile) -> Profile:
    """Matrix products under the names that the same libraries give them on another architecture."""

    def change(event: Event) -> Event:
        if event.get("cat") != "kernel":
            return event
        name = str(event["name"])
        for pattern, replacement in _OTHER_NAMES:
            name = pattern.sub(replacement, name)
        return {**event, "name": name}

    return _each(profile, change)


def _on_device(name: str | None) -> Callable[[Profile], Profile]:
    """Rename the device; None takes its name away."""

    def change(profile: Profile) -> Profile:
        if name is None:
            return {key: value for key, value in profile.items() if key != "deviceProperties"}
        return {**profile, "deviceProperties": [{**device, "name": name} for device in profile["deviceProperties"]]}

    return change


def _cut(first: int, last: int | None) -> Callable[[Profile], Profile]:
    """Only steps first … last (exclusive, as of a list), as a profiler that records no more of them leaves it.

    Work that begins on the device within the window stays, though it was launched before; the launches do not.
    """

    def change(profile: Profile) -> Profile:
        events = profile["traceEvents"]
        marks = sorted(
            (event for event in events if _is_mark(event) and event.get("cat") != "gpu_user_annotation"),
            key=lambda event: float(event["ts"]),
        )
        kept = marks[first:last]
        if not kept:
            return profile
        names = {mark["name"] for mark in kept}
        begin, end = float(kept[0]["ts"]), float(kept[-1]["ts"]) + float(kept[-1]["dur"])
        launched_later = {
            event["args"]["correlation"]
            for event in events
            if event.get("ph") == "X" and event.get("cat") not in _DEVICE and float(event["ts"]) >= end
            if "correlation" in (event.get("args") or {})
        }

        def keep(event: Event) -> bool:
            if "ts" not in event or event.get("ph") == "M":
                return True
            start = float(event["ts"])
            if event.get("cat") in _DEVICE:
                return start >= begin and (event.get("args") or {}).get("correlation") not in launched_later
            if event.get("cat") == "gpu_user_annotation" and _is_mark(event):
                return event["name"] in names
            return begin <= start < end or _spans(event, begin, end)

        return _only(profile, keep)

    return change


def _spans(event: Event, begin: float, end: float) -> bool:
    """Frames and loops that began before and go on: a profiler that starts late writes them from its start on."""
    if event.get("cat") != "python_function" or "dur" not in event:
        return False
    return float(event["ts"]) < begin and float(event["ts"]) + float(event["dur"]) > end


def _on_other_streams(profile: Profile) -> Profile:
    """Streams and threads under other numbers, as another run gives them."""

    def change(event: Event) -> Event:
        if event.get("cat") not in _DEVICE or "stream" not in (event.get("args") or {}):
            return event
        stream = int(event["args"]["stream"]) + 13
        return {**event, "tid": stream, "args": {**event["args"], "stream": stream}}

    return _each(profile, change)


def _backwards(profile: Profile) -> Profile:
    """The events of a file have no order."""
    return _with(profile, profile["traceEvents"][::-1])


def _without_optimizer_ranges(profile: Profile) -> Profile:
    """Take the optimizer's ranges away, as a loop that updates its parameters itself records it."""
    return _only(
        profile,
        lambda event: not (event.get("cat") in _ANNOTATIONS and str(event.get("name", "")).startswith("Optimizer.")),
    )


def _unmarked(profile: Profile) -> Profile:
    """Take PyTorch's ranges away: only the work itself tells where steps end."""
    return _without_optimizer_ranges(_without_marks(profile))


def _from_within_a_step(profile: Profile) -> Profile:
    """Cut the first step, as a profiler records it that starts while a step is under way."""
    events = profile["traceEvents"]
    steps = [event for event in events if _is_mark(event) and event.get("cat") == "user_annotation"]
    if not steps:
        return profile
    first = min(steps, key=lambda event: float(event["ts"]))
    begin = float(first["ts"]) + 0.6 * float(first["dur"])
    return _without_marks(
        _only(profile, lambda event: "ts" not in event or event.get("ph") == "M" or float(event["ts"]) >= begin)
    )


PERTURBATIONS = (
    Perturbation("as recorded", lambda profile: profile),
    Perturbation("events backwards", _backwards),
    Perturbation("other streams", _on_other_streams),
    Perturbation("no flow arrows", _without_arrows),
    Perturbation("no step marks", _without_marks),
    Perturbation("annotated steps", _marked_by_annotations),
    Perturbation("no optimizer ranges", _without_optimizer_ranges),
    Perturbation("no marks at all", _unmarked),
    Perturbation("from within a step", _from_within_a_step),
    Perturbation("no frames", _without_frames),
    Perturbation("no shapes", _without_arguments(*_SHAPES)),
    Perturbation("no grids", _without_arguments(*_GRIDS)),
    Perturbation("inner steps", _cut(1, -1)),
    Perturbation("two steps", _cut(1, 3)),
    Perturbation("one step", _cut(1, 2)),
    Perturbation("last step", _cut(-1, None)),
    Perturbation("kernels renamed", _renamed_kernels),
    Perturbation("device unnamed", _on_device(None)),
    Perturbation("device unheard of", _on_device("NVIDIA Z9000")),
    Perturbation("twice as long", _stretched(2.0)),
    Perturbation("half as long", _stretched(0.5)),
    Perturbation("said to be an A100", _on_device("NVIDIA A100-SXM4-80GB")),
)
