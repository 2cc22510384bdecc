"""Whether a program takes derivatives of derivatives, which fused kernels do not have."""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst

from diagnose.source.tree.arguments import argument
from diagnose.source.tree.syntax import parse

__all__ = ["second_derivative"]

_TRANSFORMS = ("torch.func.", "functorch.", "torch.autograd.functional.", "torch.autograd.forward_ad.")
_PLAIN = frozenset({"torch.func.functional_call", "torch.func.stack_module_state"})
_HINTS = ("create_graph", "torch.func", "functorch", "autograd.functional", "forward_ad")


def second_derivative(sources: Mapping[str, str]) -> str | None:
    """The file and line of the first call that asks for gradients of gradients, or transforms a function for others."""
    for path, text in sources.items():
        source = parse(text) if any(hint in text for hint in _HINTS) else None
        for call in source.every(cst.Call) if source is not None else ():
            assert source is not None
            asked = argument(call, "create_graph")
            keeps = asked is not None and source.code(asked.value) != "False"
            names = source.names(call.func) - _PLAIN
            if keeps or any(name.startswith(_TRANSFORMS) for name in names):
                return f"{path}:{source.lines_of(call)[0]}"
    return None
