"""What the fixers propose for a program, asked without a run of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from adversarial.program import Program
from diagnose.fixer import Edits, Facts, Fixer, Gate, Request, Site, example_request
from diagnose.model import Place, Scalar
from diagnose.plugins import load

_FACTS = Facts(
    torch_version="2.13.0",
    device_name="NVIDIA H200",
    device_capability=(9, 0),
    device_memory_bytes=140_000_000_000,
    matmul_precision="highest",
    autocast_dtype="none",
    cudnn_benchmark=False,
    cudnn_deterministic=False,
    deterministic=False,
    cpu_count=4,
)
"""A machine on which most fixers have something to do."""
_LOADER: Mapping[str, Scalar] = {
    "num_workers": 0,
    "shuffle": False,
    "pin_memory": False,
    "persistent_workers": False,
    "drop_last": False,
    "batch_size": 1,
}
_POSITIONS = {"DataLoader": ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers")}
_WRAPPER: Mapping[str, Scalar] = {
    "find_unused_parameters": False,
    "gradient_as_bucket_view": False,
    "static_graph": False,
    "broadcast_buffers": True,
}


@dataclass(frozen=True)
class Proposal:
    """One edit of one program."""

    program: Program
    fixer: str
    gate: Gate
    files: Mapping[str, str]
    """All files of the program after the edit, and those that it adds."""
    summary: str


@cache
def fixers() -> Mapping[str, Fixer]:
    """All fixers by name."""
    return load().fixers


@cache
def rules_of(fixer: str) -> tuple[str, ...]:
    """The rules that name a fixer."""
    rules = load().rules
    found = rules.values() if isinstance(rules, Mapping) else rules
    return tuple(sorted(rule.name for rule in found if fixer in rule.fixers))


def proposals(program: Program, only: str | None = None, noted: Sequence[Site] = ()) -> Iterator[Proposal]:
    """Each different edit that the fixers, or one of them, propose; `noted`: what a run showed of optimizers."""
    for name in fixers() if only is None else (only,):
        seen: set[tuple[tuple[str, str], ...]] = set()
        for found in _asked(program, name, noted):
            key = tuple(sorted(found.files.items()))
            if key not in seen:
                seen.add(key)
                yield found


def _asked(program: Program, name: str, noted: Sequence[Site]) -> Iterator[Proposal]:
    fixer = fixers()[name]
    for request in _requests(program, name, noted):
        settings = list(fixer.settings(request))
        for setting in settings[:1] + settings[1:][-1:]:
            answer = fixer.rewrite(replace(request, setting=setting))
            if isinstance(answer, Edits):
                files = {**program.files, **answer.files}
                yield Proposal(program, name, answer.gate or fixer.gate, files, answer.summary)


def _requests(program: Program, fixer: str, noted: Sequence[Site]) -> Iterator[Request]:
    """A request for each rule that names the fixer: with a finding that names no line, and one that names all."""
    sites = (*_sites(program), *noted)
    facts = replace(_FACTS, autocast_dtype=None) if "autocast" in program.text else _FACTS
    if program.ranks > 1:
        facts = replace(facts, world_size=program.ranks, local_world_size=program.ranks)
    for rule in rules_of(fixer):
        request = example_request(rule, program.text, sites=sites, facts=facts)
        request = replace(request, sources=program.files)
        every = tuple(
            Place(path, line) for path, text in program.files.items() for line in range(1, text.count("\n") + 1)
        )
        yield request
        yield replace(request, finding=replace(request.finding, where=every))


def _sites(program: Program) -> Iterator[Site]:
    """Where the program builds loaders, optimizers and wrappers, as a run of it records them."""
    for path, text in program.files.items():
        tree = ast.parse(text)
        for call in ast.walk(tree):
            if not isinstance(call, ast.Call):
                continue
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            if name == "DataLoader":
                left = {key: value for key, value in _LOADER.items() if key not in _given(call)}
                yield Site("DataLoader", path, call.lineno, arguments={**left, **_literals(call)})
            elif name in ("DistributedDataParallel", "DDP"):
                yield Site("DistributedDataParallel", path, call.lineno, arguments={**_WRAPPER, **_literals(call)})
            elif name in ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad"):
                yield Site("optimizer", path, call.lineno, arguments={"name": name})
            elif name == "GradScaler":
                yield Site("GradScaler", path, call.lineno, arguments=_literals(call))


def _given(call: ast.Call) -> dict[str, ast.expr]:
    """The arguments of a call by name."""
    named = {word.arg: word.value for word in call.keywords if word.arg is not None}
    return {**dict(zip(_POSITIONS["DataLoader"], call.args, strict=False)), **named}


def _literals(call: ast.Call) -> dict[str, Scalar]:
    known: dict[str, Scalar] = {}
    for name, value in _given(call).items():
        if isinstance(value, ast.Constant) and isinstance(value.value, bool | int | float | str):
            known[name] = value.value
    return known
