"""Says whether an edited program still does what the original does, by all that a user sees of both.

It shares no code with the numerics gate. Both programs are run whole; what they print, the files that they leave (by
name, and the tensors and numbers in them), their exit codes and exceptions are compared; then again with an exception
and with Ctrl-C in one of the optimizer steps. Edits that promise the same bits must leave equal figures. For those that
promise the same mathematics, the original is run once more with its weights disturbed by a rounding error at the first
step: a figure may differ by thirty times what it differs there, or by 1e-4 of its size, or in its last printed digit.
Of edits that change the training, only form is compared: exit codes, exceptions, file names.
Figures of time and rate (`3.2 s`, `120 it/s`, `time: 0.3`) are not compared.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from adversarial.proposals import Proposal
from adversarial.running import Outcome, Runner
from diagnose.fixer import Gate

_TIME = re.compile(
    r"[\d.]+(?:e-?\d+)?\s*(?:ms|s|sec|seconds|it/s|samples/s|tok/s)\b|(?:time|took|elapsed)\W*[\d.]+", re.IGNORECASE
)
_TOKEN = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf|[A-Za-z_]+|[^\s\w]")
_NUMBER = re.compile(r"[-+]?(?:\d|\.\d|nan$|inf$)")
_TIMES = 30
_SHARE = 1e-4
_MODES = ("whole", "exception", "interrupt")


@dataclass(frozen=True)
class Difference:
    """What the edit changed."""

    mode: str
    """`whole`, `exception` or `interrupt`."""
    kind: str
    """`exit`, `printed`, `complained`, `files`, `contents`."""
    detail: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.kind} ({self.mode}): {self.detail}"


class NotJudged(Exception):
    """A run took longer than it may, which says nothing about an edit: the machine may have been busy."""


class Oracle:
    """Compares edits of one program with the program. Raises NotJudged where one of the two does not end in time."""

    def __init__(self, runner: Runner, files: Mapping[str, str], ranks: int = 1) -> None:
        self._runner, self._files, self._ranks = runner, files, ranks
        self._originals: dict[str, Outcome] = {}

    @property
    def whole(self) -> Outcome:
        """The run of the original."""
        return self._original("whole")

    def differences(self, proposal: Proposal) -> Iterator[Difference]:
        """What an edit changes, by mode."""
        return self.compare(proposal.files, proposal.gate)

    def compare(self, edited: Mapping[str, str], gate: Gate) -> Iterator[Difference]:
        """What the edited files do differently from what their gate promises."""
        for mode in _MODES:
            if mode != "whole" and self._at == 0:
                continue
            at = 0 if mode == "whole" else self._at
            patched = self._run("the edited program", edited, mode, at)
            found = list(_differences(mode, gate, self._original(mode), patched, self._disturbed(gate, mode)))
            yield from found
            if found and mode == "whole":
                return

    @property
    def _at(self) -> int:
        """The step in which something goes wrong: three fifths through, so that an epoch is behind and one begun."""
        steps = self.whole.steps
        return 0 if steps < 2 else int(0.6 * steps) + 1

    def _original(self, mode: str) -> Outcome:
        if mode not in self._originals:
            at = 0 if mode in ("whole", "disturbed") else self._at
            self._originals[mode] = self._run("the original", self._files, mode, at)
        return self._originals[mode]

    def _run(self, which: str, files: Mapping[str, str], mode: str, at: int) -> Outcome:
        outcome = self._runner.run(files, ranks=self._ranks, mode=mode, at=at)
        if not outcome.ended_in_time:
            raise NotJudged(f"{which} did not end in time ({mode})")
        return outcome

    def _disturbed(self, gate: Gate, mode: str) -> Outcome | None:
        return self._original("disturbed") if gate is Gate.ROUNDING and mode == "whole" else None


def _differences(
    mode: str, gate: Gate, original: Outcome, patched: Outcome, disturbed: Outcome | None
) -> Iterator[Difference]:
    if original.codes != patched.codes:
        last = (patched.complained[0].strip().splitlines() or [""])[-1]
        yield Difference(mode, "exit", f"{original.codes} became {patched.codes}: {last}")
        return
    if sorted(original.files) != sorted(patched.files):
        gone = sorted(set(original.files) - set(patched.files))
        new = sorted(set(patched.files) - set(original.files))
        yield Difference(mode, "files", f"missing {gone}, new {new}")
    kept = disturbed if disturbed is not None else original
    for rank in range(len(original.codes)):
        texts = [(one.printed[rank], _errors(one.complained[rank])) for one in (original, patched, kept)]
        for kind, at in (("printed", 0), ("complained", 1)):
            found = _text_difference(gate, *(text[at] for text in texts))
            if found and (kind == "complained" or gate is not Gate.TRAINING):
                yield Difference(mode, kind, found)
    if gate is Gate.TRAINING:
        return
    for name, content in original.files.items():
        if name in patched.files:
            found = _content_difference(gate, content, patched.files[name], kept.files.get(name, content))
            if found:
                yield Difference(mode, "contents", f"{name}: {found}")


def _errors(text: str) -> str:
    """Standard error without what names lines of code: frames of tracebacks, and warnings."""
    lines = [line for line in text.splitlines() if not line.startswith(" ") and "Warning" not in line]
    return "\n".join(re.sub(r"(?:/\S+)|line \d+", "", line) for line in lines)


def _text_difference(gate: Gate, original: str, patched: str, disturbed: str) -> str | None:
    a, b, c = (_TOKEN.findall(_TIME.sub("TIME", text)) for text in (original, patched, disturbed))
    if gate is Gate.TRAINING:
        return (
            None
            if [one for one in a if not _NUMBER.match(one)] == [one for one in b if not _NUMBER.match(one)]
            else "words differ"
        )
    c = c if len(c) == len(a) else a
    for at, (one, other, near) in enumerate(zip(a, b, c, strict=False)):
        if one != other and not (gate is Gate.ROUNDING and _close_tokens(one, other, near)):
            return f"{' '.join(a[max(0, at - 4) : at + 2])!r} became {' '.join(b[max(0, at - 4) : at + 2])!r}"
    return None if len(a) == len(b) else f"{len(a)} tokens became {len(b)}: {a[len(b) :][:6] or b[len(a) :][:6]}"


def _close_tokens(one: str, other: str, near: str) -> bool:
    try:
        a, b, c = float(one), float(other), float(near)
    except ValueError:
        return False
    if math.isnan(a) or math.isinf(a):
        return a == b or (math.isnan(a) and math.isnan(b))
    digits = len(one.partition(".")[2].split("e")[0])
    unit = 10.0**-digits if "." in one else 0.0
    return abs(a - b) <= max(_TIMES * abs(a - c), _SHARE * abs(a), 1.001 * unit, 1e-6)


def _content_difference(gate: Gate, original: bytes, patched: bytes, disturbed: bytes) -> str | None:
    if original == patched:
        return None
    values = [_loaded(each) for each in (original, patched, disturbed)]
    if values[0] is _NO_TENSORS or values[1] is _NO_TENSORS:
        try:
            texts = [each.decode() for each in (original, patched, disturbed)]
        except UnicodeDecodeError:
            return "bytes differ"
        return _text_difference(gate, *texts)
    return next(_value_differences(gate, "", *values), None)


_NO_TENSORS = object()


def _loaded(content: bytes) -> object:
    if content[:2] != b"PK":
        return _NO_TENSORS
    try:
        return torch.load(io.BytesIO(content), weights_only=False)
    except (RuntimeError, AttributeError, ModuleNotFoundError):
        return _NO_TENSORS


def _value_differences(gate: Gate, path: str, a: object, b: object, c: object) -> Iterator[str]:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if a.shape != b.shape or a.dtype != b.dtype:
            yield f"{path}: {a.dtype} {tuple(a.shape)} became {b.dtype} {tuple(b.shape)}"
        elif not torch.equal(a, b):
            near = c if isinstance(c, torch.Tensor) and c.shape == a.shape else a
            gap, allowed = (float((a.double() - one.double()).abs().max()) for one in (b, near))
            scale = float(a.double().abs().max())
            if gate is not Gate.ROUNDING or not gap <= max(_TIMES * allowed, _SHARE * scale, 1e-7):
                yield f"{path}: tensors differ by {gap:.3g}, disturbed by {allowed:.3g}"
    elif isinstance(a, Mapping) and isinstance(b, Mapping):
        if list(a) != list(b):
            yield f"{path}: keys {list(a)} became {list(b)}"
            return
        for key in a:
            if "/param_groups[" in path and key in ("fused", "foreach"):
                continue  # by which kernels an optimizer that is made of this state updates
            near = c[key] if isinstance(c, Mapping) and key in c else a[key]
            yield from _value_differences(gate, f"{path}/{key}", a[key], b[key], near)
    elif isinstance(a, list | tuple) and isinstance(b, list | tuple):
        if len(a) != len(b):
            yield f"{path}: {len(a)} entries became {len(b)}"
            return
        for at, (one, other) in enumerate(zip(a, b, strict=True)):
            near = c[at] if isinstance(c, list | tuple) and at < len(c) else one
            yield from _value_differences(gate, f"{path}[{at}]", one, other, near)
    elif isinstance(a, torch.nn.Module) and isinstance(b, torch.nn.Module):
        states = c.state_dict() if isinstance(c, torch.nn.Module) else a.state_dict()
        yield from _value_differences(gate, path, a.state_dict(), b.state_dict(), states)
    elif type(a) is not type(b) or (found := _text_difference(gate, repr(a), repr(b), repr(c))) is not None:
        yield f"{path}: {a!r} became {b!r}" if type(a) is not type(b) else f"{path}: {found}"
