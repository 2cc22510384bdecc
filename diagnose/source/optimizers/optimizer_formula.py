"""Which optimizer of torch a class of the program's own is, by what its `step` computes.

Nothing of the program is run. The class is read as arithmetic on single numbers: `__init__` and `step` are followed
with made-up parameters, gradients and settings, in double precision, and what becomes of the parameters is compared
with the formulas of AdamW, Adam and SGD. Whatever is not understood (a call, a number format, a decorator) means no
answer.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

import libcst as cst

from diagnose.source.optimizers.scalar_machine import Machine, NotUnderstoodError, Tensor
from diagnose.source.tree.syntax import Source

__all__ = ["KnownOptimizer", "known_optimizer"]

_ROLES = {
    "lr": "lr",
    "learning_rate": "lr",
    "betas": "betas",
    "beta1": "beta1",
    "b1": "beta1",
    "beta2": "beta2",
    "b2": "beta2",
    "eps": "eps",
    "epsilon": "eps",
    "weight_decay": "weight_decay",
    "decay": "weight_decay",
    "wd": "weight_decay",
    "momentum": "momentum",
    "mu": "momentum",
    "dampening": "dampening",
    "nesterov": "nesterov",
}
_TRIED: Mapping[str, object] = {
    "lr": 0.0123,
    "betas": (0.87, 0.953),
    "beta1": 0.87,
    "beta2": 0.953,
    "eps": 1.3e-6,
    "weight_decay": 0.071,
    "momentum": 0.83,
    "dampening": 0.11,
}
_DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "AdamW": {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2},
    "Adam": {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0},
    "SGD": {"lr": 1e-3, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False},
}
_STEPS = 4
_SCALES = (1.0, 1e-5)
"""Of the gradients: where they are small, it shows where a formula adds its epsilon."""
_EXACT = 1e-11
_METHODS = frozenset({"__init__", "step", "__setstate__"})
_MOST_LITERALS = 6


@dataclass(frozen=True)
class KnownOptimizer:
    """A class that computes what one of torch's own does."""

    kind: str
    """`AdamW`, `Adam` or `SGD`."""
    parameters: tuple[str, ...]
    """Of its `__init__`, without self; the first takes the model's parameters."""
    roles: Mapping[str, str]
    """Parameter → keyword of torch's; `beta1` and `beta2` stand for the two parts of `betas`."""
    needed: Mapping[str, object]
    """Keywords that torch's needs where the program passes nothing, since its defaults are others."""


def known_optimizer(source: Source, written: cst.ClassDef) -> KnownOptimizer | None:
    """What a class derived from `torch.optim.Optimizer` computes, where that is certain."""
    if not any(name.startswith("torch.optim.") for base in written.bases for name in source.names(base.value)):
        return None
    try:
        tree = ast.parse(source.text)
    except SyntaxError:
        return None
    line = source.lines_of(written.name)[0]
    found = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == written.name.value]
    node = next((each for each in found if each.lineno == line), None)
    try:
        return _Reading(tree, node).answer() if node is not None else None
    except (NotUnderstoodError, ArithmeticError, ValueError, TypeError, KeyError, IndexError, RecursionError):
        return None


class _Reading:
    """One class while it is compared."""

    def __init__(self, tree: ast.Module, node: ast.ClassDef) -> None:
        self.tree = tree
        self.methods = {each.name: each for each in node.body if isinstance(each, ast.FunctionDef)}
        others = [each for each in node.body if not isinstance(each, ast.FunctionDef | ast.Expr)]
        public = {name for name in self.methods if not name.startswith("_") or name.startswith("__")}
        if others or not {"__init__", "step"} <= public or not public <= _METHODS:
            raise NotUnderstoodError("has members of its own")
        for method in self.methods.values():
            plain = {"torch.no_grad()", "torch.no_grad", "no_grad()", "staticmethod"}
            if not {ast.unparse(each) for each in method.decorator_list} <= plain:
                raise NotUnderstoodError("is decorated")
        listed = self.methods["__init__"].args
        if listed.vararg or listed.kwarg or listed.posonlyargs:
            raise NotUnderstoodError("takes more than it names")
        names = [each.arg for each in (*listed.args[1:], *listed.kwonlyargs)]
        first = [None] * (len(listed.args) - len(listed.defaults))
        self.parameters = tuple(names)
        self.defaults = {
            name: value
            for name, value in zip(names, [*first, *listed.defaults][1:] + listed.kw_defaults, strict=True)
            if value is not None
        }
        self.roles = {name: _ROLES[name] for name in names[1:] if name in _ROLES}
        literals = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
        self.literals = sorted({float(each) for each in literals if isinstance(each, float) and 0 < each < 1})

    def answer(self) -> KnownOptimizer | None:
        settings = {name: self._tried(name) for name in self.parameters[1:]}
        went = [self._went(settings, scale) for scale in _SCALES]
        given = {role: settings[name] for name, role in self.roles.items()}
        if "beta1" in given and "beta2" in given:
            given["betas"] = (given.pop("beta1"), given.pop("beta2"))
        for kind, hyper in _guesses(given, self.literals):
            if all(_agree(path, _reference(kind, hyper, scale)) for path, scale in zip(went, _SCALES, strict=True)):
                return KnownOptimizer(kind, self.parameters, self.roles, self._needed(kind, hyper))
        return None

    def _tried(self, name: str) -> object:
        role = self.roles.get(name)
        if role is not None and role in _TRIED:
            return _TRIED[role]
        if name not in self.defaults:
            raise NotUnderstoodError(f"needs {name}")
        return ast.literal_eval(self.defaults[name])

    def _went(self, settings: Mapping[str, object], scale: float) -> list[tuple[float, ...]]:
        """The parameters after each step."""
        parameters = [Tensor(value) for value in _starts()]
        machine = Machine(self.tree, self.methods, parameters)
        machine.call("__init__", [parameters], settings)
        path = []
        for gradients in _gradients(scale):
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = Tensor(gradient)
            machine.call("step", [], {})
            path.append(tuple(parameter.value for parameter in parameters))
        return path

    def _needed(self, kind: str, hyper: Mapping[str, object]) -> dict[str, object]:
        """Torch's keyword → value, for what is not torch's default when the program passes nothing."""
        own = dict(hyper)
        for name, role in self.roles.items():
            if name in self.defaults and role in _DEFAULTS[kind]:
                own[role] = ast.literal_eval(self.defaults[name])
            elif role in _DEFAULTS[kind]:
                own.pop(role, None)  # the program always passes it
        pairs = [name for name, role in self.roles.items() if role in ("beta1", "beta2")]
        if pairs:
            own["betas"] = tuple(ast.literal_eval(self.defaults[name]) for name in pairs if name in self.defaults)
        return {role: value for role, value in own.items() if value != _DEFAULTS[kind][role]}


def _starts() -> list[float]:
    return [0.7, -1.3]


def _gradients(scale: float) -> list[list[float]]:
    return [[scale * math.sin(3 * step + 1), scale * math.cos(5 * step + 2)] for step in range(_STEPS)]


def _guesses(given: Mapping[str, object], literals: Sequence[float]) -> Iterator[tuple[str, dict[str, object]]]:
    """Optimizers with the settings that the class takes; what it does not take may stand in its formulas."""
    few = literals[:_MOST_LITERALS]
    if {"momentum", "dampening", "nesterov"} & set(given) or "betas" not in given:
        momenta = [given["momentum"]] if "momentum" in given else [0.0, *few]
        decays = [given.get("weight_decay", 0.0)]
        rest = {"dampening": given.get("dampening", 0.0), "nesterov": given.get("nesterov", False)}
        for momentum in momenta:
            yield "SGD", {"lr": given.get("lr"), "momentum": momentum, "weight_decay": decays[0], **rest}
    pairs = [given["betas"]] if "betas" in given else list(permutations(few, 2))
    for betas in pairs:
        for eps in [given["eps"]] if "eps" in given else [0.0, *few]:
            # Without a decay the two are the same, and Adam's default is to have none.
            for kind in ("AdamW", "Adam") if "weight_decay" in given else ("Adam",):
                decay = given.get("weight_decay", 0.0)
                yield kind, {"lr": given.get("lr"), "betas": betas, "eps": eps, "weight_decay": decay}


def _reference(kind: str, hyper: Mapping[str, object], scale: float) -> list[tuple[float, ...]]:
    """What torch's own would do."""
    values = _starts()
    first, second = [0.0] * len(values), [0.0] * len(values)
    path = []
    for step, gradients in enumerate(_gradients(scale), 1):
        for at, gradient in enumerate(gradients):
            if kind == "SGD":
                values[at], first[at] = _sgd(values[at], gradient, first[at], hyper, step)
            else:
                values[at], first[at], second[at] = _adam(
                    kind, values[at], gradient, first[at], second[at], hyper, step
                )
        path.append(tuple(values))
    return path


def _sgd(p: float, g: float, buffer: float, hyper: Mapping[str, object], step: int) -> tuple[float, float]:
    lr, momentum, decay, dampening = (_number(hyper[name]) for name in ("lr", "momentum", "weight_decay", "dampening"))
    g += decay * p
    if momentum:
        buffer = g if step == 1 else momentum * buffer + (1 - dampening) * g
        g = g + momentum * buffer if hyper["nesterov"] else buffer
    return p - lr * g, buffer


def _adam(
    kind: str, p: float, g: float, m: float, v: float, hyper: Mapping[str, object], step: int
) -> tuple[float, float, float]:
    lr, eps, decay = (_number(hyper[name]) for name in ("lr", "eps", "weight_decay"))
    betas = hyper["betas"]
    if not isinstance(betas, tuple):
        raise NotUnderstoodError("betas are no pair")
    beta1, beta2 = betas
    if kind == "AdamW":
        p -= lr * decay * p
    else:
        g += decay * p
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    return p - lr * (m / (1 - beta1**step)) / (math.sqrt(v / (1 - beta2**step)) + eps), m, v


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise NotUnderstoodError("is no number")
    return float(value)


def _agree(one: Sequence[tuple[float, ...]], other: Sequence[tuple[float, ...]]) -> bool:
    return all(
        abs(mine - theirs) <= _EXACT * max(1.0, abs(theirs))
        for step, reference in zip(one, other, strict=True)
        for mine, theirs in zip(step, reference, strict=True)
    )
