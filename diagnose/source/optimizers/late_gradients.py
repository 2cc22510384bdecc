"""Whether some parameters may get their first gradient in a later step than others.

The fused form of SGD makes the momentum of all parameters in the first step that has any, and fails where one is still
without in a later step. What the first steps of an optimizer had is recorded in a run of the program; what is left to
read is whether parameters that were frozen then are freed while training goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import libcst as cst

from diagnose.model import Site
from diagnose.source.dataflow.reachable_code import ReachableCode, runs_after
from diagnose.source.dataflow.reaching_definitions import Bound, definition_of
from diagnose.source.training.every_step import EveryStep
from diagnose.source.training.model_calls import is_model
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.literals import literal, string
from diagnose.source.tree.syntax import Source

_ALL = frozenset({"parameters", "named_parameters", "modules", "children"})
_DEEPEST = 4  # names behind names


def late_gradients(sources: Mapping[str, str], sites: Sequence[Site], optimizer: Site) -> str | None:
    """Return why a parameter of an optimizer may get its first gradient in a later step than others; None where the
    recorded sites show that all get it in the first steps.
    """
    where = f"{optimizer.file}:{optimizer.line}"
    recorded = {site.kind for site in sites if (site.file, site.line) == (optimizer.file, optimizer.line)}
    if "idle parameters" in recorded:
        return f"{where}: some of its parameters had no gradient in one of the first steps"
    if "stepped" not in recorded:
        return f"{where}: no run shows that all of its parameters have a gradient in the first steps"
    freed = next(_freed(EveryStep(sources)), None) if "frozen parameters" in recorded else None
    return f"{freed} may free parameters that had no gradient in the first steps" if freed is not None else None


def _freed(code: EveryStep) -> Iterator[str]:
    """Yield where parameters are freed in what training runs again and again, or in what runs between two loops of
    it."""
    if not any(source.mentions("requires_grad", "requires_grad_") for source in code.sources.values()):
        return
    begins = [code.beginning(stretch) for stretch in code.stretches if stretch.loop is not None]
    after = [place for each in begins for place in runs_after(code.sources, each.path, each.body)]
    reached = ReachableCode(code.sources, [*((each.path, each.source, each.body) for each in begins), *after])
    for path, source, call in reached.every(cst.Call):
        if _frees_by_name(call):
            yield f"{path}:{source.lines_of(call)[0]}"
    for path, source, node in reached.every(cst.Attribute):
        above = source.parent(node)
        given: cst.BaseExpression | None = None
        if node.attr.value == "requires_grad" and isinstance(above, cst.AssignTarget):
            assign = source.parent(above)
            given = assign.value if isinstance(assign, cst.Assign) else None
        elif node.attr.value == "requires_grad_" and isinstance(above, cst.Call):
            given = above.args[0].value if above.args else cst.Name("True")
        told = literal(given) if given is not None else None
        frees = given is not None and (told is None or told.value is not False)
        if frees and _is_parameter(source, node.value):
            yield f"{path}:{source.lines_of(node)[0]}"


def _frees_by_name(call: cst.Call) -> bool:
    """Whether a call is `setattr(parameter, "requires_grad", True)`."""
    if call_name(call) != "setattr" or len(call.args) < len(("owner", "name", "value")):
        return False
    told = literal(call.args[2].value)
    return string(call.args[1].value) == "requires_grad" and (told is None or told.value is not False)


def _is_parameter(source: Source, owner: cst.BaseExpression, depth: int = 0) -> bool:
    """Whether an object may be a parameter or a module, not a batch: a model or of one, an attribute, or handed in."""
    while isinstance(owner, cst.Subscript):
        owner = owner.value
    if not isinstance(owner, cst.Name):
        return isinstance(owner, cst.Attribute)
    seen = definition_of(source, owner)
    if is_model(source, owner.value) or seen.bound is Bound.PARAMETER:
        return True
    if seen.assigned is not None and depth < _DEEPEST:
        return _is_parameter(source, seen.assigned, depth + 1)
    loops = (above for above in source.ancestors(owner) if isinstance(above, cst.For))
    over = (call for loop in loops for call in source.every(cst.Call, loop.iter))
    return any(call_name(call) in _ALL for call in over)
