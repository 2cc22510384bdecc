"""Reading the nodes of Dynamo's graph: what they call, what they hold, where they stand in the user's source.

A call is spelled the same whether it is written as a function, a method or an operator: `x * y`, `torch.mul(x, y)` and
`x.mul(y)` are all `mul`. Calls of anything but torch's own functions have no spelling.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')


def spelling(node: object) -> str:
    """The name of what a node calls, without the module; empty for what is no call of torch's."""
    if not isinstance(node, fx.Node):
        return ""
    if node.op == "call_method":
        return str(node.target)
    if node.op != "call_function" or not callable(node.target):
        return ""
    module = getattr(node.target, "__module__", None) or "torch"
    if module.partition(".")[0] not in ("torch", "_operator"):
        return ""
    return str(getattr(node.target, "__name__", ""))


def calls(node: object, *names: str) -> bool:
    """Whether a node calls one of these."""
    return spelling(node) in names


def operand(node: fx.Node, place: int, name: str, default: object = None) -> Any:
    """An argument by its place or its name."""
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def fake_value(node: object) -> torch.Tensor | None:
    """Return a node's tensor without its values: shape, strides, dtype and device are there, elements are not."""
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def hinted_value(node: fx.Node) -> torch.Tensor:
    """Return a node's tensor of this call on the meta device. Symbolic sizes have current values, without a guard."""
    value = fake_value(node)
    assert value is not None, f"{node} holds no tensor"
    return torch.empty([now(size) for size in value.shape], dtype=value.dtype, device="meta")


def now(size: Any) -> int:
    """A symbolic size as it is in this call, without a guard; 1 where nothing is known of it."""
    if isinstance(size, int):
        return size
    return int(size.node.hint) if size.node.has_hint() else 1


def size_of_now(node: fx.Node) -> int | None:
    """The number that a node holds in this call, where it holds a symbolic size."""
    value = node.meta.get("example_value")
    return now(value) if isinstance(value, torch.SymInt) else None


def equal_sizes(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether sizes are known to be equal; symbolic ones are compared without a guard."""
    pairs = zip(some, others, strict=False)
    return len(some) == len(others) and all(statically_known_true(one == other) for one, other in pairs)


def shape(node: object) -> tuple[Any, ...]:
    """The sizes of what a node holds; sizes may be symbolic. Empty for what is no tensor."""
    value = fake_value(node)
    return () if value is None else tuple(value.shape)


def dtype(node: object) -> torch.dtype | None:
    """The dtype of what a node holds."""
    value = fake_value(node)
    return None if value is None else value.dtype


def number(value: object) -> float | None:
    """A constant of the graph as a number; None for what is only known when it runs."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def wanted_gradient(node: fx.Node) -> bool:
    """Whether gradients flow through what a node holds."""
    value = fake_value(node)
    return value is not None and value.requires_grad


def only_read_by(node: fx.Node, readers: Iterable[fx.Node]) -> bool:
    """Whether only `readers` read a node; the graph's output counts as a reader."""
    return set(node.users) <= set(readers)


def factors(node: object, *names: str) -> Iterator[tuple[Any, Any]]:
    """Both orders of the two operands of an addition or a product, called by one of these names."""
    if isinstance(node, fx.Node) and calls(node, *names) and len(node.args) == 2 and not node.kwargs:
        first, second = node.args
        yield first, second
        yield second, first


def before_casts(node: object) -> tuple[Any, tuple[fx.Node, ...]]:
    """Return the node that a chain of casts to another floating dtype starts from, and the casts, last first."""
    casts: list[fx.Node] = []
    while isinstance(node, fx.Node) and is_cast(node):
        casts.append(node)
        node = node.args[0]
    return node, tuple(casts)


def is_cast(node: fx.Node) -> bool:
    """Whether a node does nothing but change the floating dtype of a tensor."""
    if not node.args or fake_value(node) is None or fake_value(node.args[0]) is None:
        return False
    if calls(node, "float", "half", "bfloat16", "double") and node.op == "call_method":
        return len(node.args) == 1 and not node.kwargs
    if calls(node, "to", "type_as", "type"):
        before, after = fake_value(node.args[0]), fake_value(node)
        assert before is not None
        assert after is not None
        return before.device == after.device and before.is_floating_point() and after.is_floating_point()
    return False


def place_of(node: fx.Node) -> tuple[str, int, str]:
    """File, line and module of a node: the innermost frame that is not torch's; ('', 0, …) where none is known."""
    stack = str(node.meta.get("stack_trace") or node.stack_trace or "")
    frames = [found for found in FRAME.finditer(stack) if "/torch/" not in found["file"].replace("\\", "/")]
    modules = list((node.meta.get("nn_module_stack") or {}).values())
    module = _user_path(modules[-1][0]) if modules else ""
    return (frames[-1]["file"], int(frames[-1]["line"]), module) if frames else ("", 0, module)


def _user_path(path: str) -> str:
    """A module's path as the user writes it: Dynamo says `L['self']._modules['blocks']._modules['0']`."""
    path = re.sub(r"\._modules\['([^']+)'\]", r".\1", path)
    path = re.sub(r"\['([^']+)'\]", r".\1", path).replace("getattr_", "")
    return path.removeprefix("L.").removeprefix("self.")
