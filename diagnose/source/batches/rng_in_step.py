"""Random numbers that a training step draws for each sample: other groups of samples draw others.

Noise on inputs, a time step of a diffusion, dropout. What a data set or a function that picks samples draws on the host
goes on in the same order however samples are grouped, and does not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import libcst as cst

from diagnose.source.tree.syntax import Source

_DRAWS = re.compile(
    r"\btorch\.(?:rand|randn|randint|randperm|bernoulli|multinomial|normal)(?:_like)?\(|"
    r"\.(?:bernoulli|uniform|normal|random)_\(|\bbernoulli\("
)
_DRAWS_IN_TURN = re.compile(
    r"\btorch\.rand\w*_like\(|\btorch\.randint\([^\n]*\bdevice\s*=|"  # without a device, of what to take
    r"\btorch\.(?:rand|randn|normal|bernoulli)\(|\.(?:bernoulli|uniform|normal|random)_\("
)
_NUMBER = r"(?:p\s*=\s*)?0?\.0*[1-9]"
_DROPS = re.compile(
    rf"drop(?:out)?(?:_?(?:p|prob|rate))?[\"']?(?:\s*:\s*float)?\s*[=:(]\s*(?:[\w.]+,\s*)?{_NUMBER}|"
    rf"dropout[\"'][^\n]*default\s*=\s*{_NUMBER}|pdrop\s*=\s*{_NUMBER}|"
    r"\bDropout\w*\(\s*\)|\b(?:F|functional)\.\w*dropout\w*\((?![^\n]*(?:\bp\s*=|,\s*(?!training|inplace)\w))|"  # 0.5
    r"\bTransformer(?:En|De)coderLayer\((?![^)]*\bdropout\s*=)",  # 0.1
    re.IGNORECASE,
)


def draws_in_step(sources: Iterable[Source], turn: str) -> str | None:
    """Return the code that draws random numbers in a step: in a model's methods, in one `turn` of the loop, or a
    dropout that is not zero. None where none does.
    """
    found = _DRAWS_IN_TURN.search(turn)
    for source in sources:
        found = found or _DROPS.search(source.text)
        for owner in source.every(cst.ClassDef):
            methods = [each for each in source.every(cst.FunctionDef, owner) if each.name.value != "__init__"]
            if any(each.name.value == "forward" for each in methods):
                found = found or next(filter(None, (_DRAWS.search(source.code(each)) for each in methods)), None)
    return found[0] if found is not None else None
