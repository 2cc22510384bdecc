"""Whether some parameters may get their first gradient in a later step than others.

The fused form of SGD makes the momentum of all parameters in the first step that has any, and fails where one is still
without in a later step. So it is asked where a step may leave layers out: a way through a module that a condition
chooses, a part of a loss that comes and goes, and parameters that are freed while training goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import libcst as cst

from diagnose.source.dataflow.bindings import binding_of, bound_to, parameter_of
from diagnose.source.dataflow.flow import binds, within
from diagnose.source.dataflow.loop_invariants import is_unchanging
from diagnose.source.dataflow.reachable_code import Reached
from diagnose.source.optimizers.gradient_coverage import is_option, is_settled, picks_layer
from diagnose.source.training.every_step import EveryStep, Stretch
from diagnose.source.tree.attributes import building_methods
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.literals import literal, string
from diagnose.source.tree.syntax import Source

_WITHOUT_GRAPH = frozenset({"no_grad", "inference_mode"})
_VALUES_ONLY = frozenset({"item", "detach", "argmax", "data", "tolist", "numpy"})
"""Attributes and methods of a tensor whose results carry no gradient back to it."""
_LEAVES = (cst.Return, cst.Continue, cst.Break)
_ALL = frozenset({"parameters", "named_parameters", "modules", "children"})
_DRAWS = frozenset({"choice", "choices", "sample"})
_Choice = cst.If | cst.IfExp


def late_gradients(sources: Mapping[str, str]) -> str | None:
    """Return a line by which a parameter may get its first gradient in a later step than others."""
    code = EveryStep(sources)
    return next(_late(code), None)


def _late(code: EveryStep) -> Iterator[str]:
    methods = {
        each.name.value: (path, source, each)
        for path, source in code.sources.items()
        for written in source.every(cst.ClassDef)
        if _is_module(written)
        for each in source.every(cst.FunctionDef, written)
        if each.name.value != "__init__"
    }
    building = building_methods(code.sources.values())
    for path, source in code.sources.items():
        for written in source.every(cst.ClassDef):
            if _is_module(written):
                yield from (f"{path}:{source.lines_of(node)[0]}" for node in _ways(code, source, written, building))
    parts = frozenset(_parts_of_models(code))
    passes = sum(len(source.calls_named("backward")) for source in code.sources.values())
    for stretch in code.stretches:
        if stretch.loop is not None or "backward" in {call_name(call) for call in stretch.steady(cst.Call)}:
            steps = _Step(code, stretch, frozenset(methods), passes, parts)
            yield from (f"{stretch.path}:{stretch.source.lines_of(node)[0]}" for node in steps.choices())
    yield from _freed(code)


def _parts_of_models(code: EveryStep) -> Iterator[str]:
    """The layers that modules give themselves, by the names of models that have parameters: `model.first`."""
    models = {
        source.code(call.func.value)
        for source in code.sources.values()
        for call in source.calls_named("parameters")
        if isinstance(call.func, cst.Attribute)
    }
    for source in code.sources.values():
        for written in filter(_is_module, source.every(cst.ClassDef)):
            for target in source.every(cst.AssignTarget, written):
                own = (each for each in source.every(cst.Attribute, target) if source.code(each.value) == "self")
                yield from (f"{model}.{each.attr.value}" for each in own for model in models)


def _is_module(written: cst.ClassDef) -> bool:
    return any(isinstance(each, cst.FunctionDef) and each.name.value == "forward" for each in written.body.body)


def _ways(code: EveryStep, source: Source, written: cst.ClassDef, building: frozenset[str]) -> Iterator[cst.CSTNode]:
    """Where a module may leave layers of its own out, in other methods than those that build it."""
    for method in source.every(cst.FunctionDef, written):
        if method.name.value == "__init__" or method.name.value in building:
            continue
        for node in source.walk(method):
            if _is_left_out_otherwise(code, source, method, node):
                yield node
            elif isinstance(node, _Choice) and not _is_settled_way(code, source, method, node.test):
                sides = [_layers(source, method, side) for side in (node.body, node.orelse) if side is not None]
                alike = len(sides) == 2 and sides[0] == sides[1]
                left = any(isinstance(each, _LEAVES) for each in source.walk(node)) and not isinstance(node, cst.IfExp)
                if (any(sides) and not alike) or (left and _layers_after(source, method, node)):
                    yield node
            elif isinstance(node, cst.For):
                if _layers(source, method, node.body) and _is_cut(code, source, node.iter):
                    yield node
            elif isinstance(node, cst.Subscript):
                if picks_layer(source, method, node):
                    yield node
            elif isinstance(node, cst.Call) and call_name(node) == "set_grad_enabled":
                yield node


def _is_left_out_otherwise(code: EveryStep, source: Source, method: cst.FunctionDef, node: cst.CSTNode) -> bool:
    """Whether layers are left out by another way than a branch or a loop over layers."""
    if isinstance(node, cst.While):
        return not _is_settled_way(code, source, method, node.test) and bool(_layers(source, method, node.body))
    if isinstance(node, cst.Match | cst.Try):
        return bool(_layers(source, method, node))
    if isinstance(node, cst.BooleanOperation):
        settled = _is_settled_way(code, source, method, node.left) or _is_asked(source, node)
        return not settled and bool(_layers(source, method, node.right))
    if isinstance(node, cst.IfExp):
        return _may_stop_graph(source, node) and not _is_settled_way(code, source, method, node.test)
    if isinstance(node, cst.Subscript) and isinstance(node.value, cst.Dict | cst.List | cst.Tuple):
        index = node.slice[0].slice
        picks = isinstance(index, cst.Index) and not _is_settled_number(code, source, index.value)
        return picks and any(source.code(each.value) == "self" for each in source.every(cst.Attribute, node.value))
    return isinstance(node, cst.Call) and isinstance(node.func, cst.Call) and call_name(node.func) in _DRAWS


def _is_asked(source: Source, node: cst.CSTNode) -> bool:
    """Whether an expression is the test of a branch, or a part of one."""
    above = source.parent(node)
    while isinstance(above, cst.BooleanOperation | cst.UnaryOperation):
        node, above = above, source.parent(above)
    return isinstance(above, cst.If | cst.IfExp | cst.While | cst.Assert) and above.test is node


def _may_stop_graph(source: Source, choice: cst.IfExp) -> bool:
    """Whether one side of `no_grad() if … else nullcontext()` keeps all gradients away."""
    return any(
        call_name(call) in _WITHOUT_GRAPH
        for side in (choice.body, choice.orelse)
        for call in source.every(cst.Call, side)
    )


def _is_settled_way(code: EveryStep, source: Source, method: cst.FunctionDef, test: cst.BaseExpression) -> bool:
    """Whether a test has the same answers in all steps: about options, about what there is, by the count of layers."""
    if is_settled(code, source, test):
        return True
    if isinstance(test, cst.Call):
        return call_name(test) == "hasattr"
    if not isinstance(test, cst.Comparison):
        return False
    counters = {
        name.value
        for loop in source.every(cst.For, method)
        if isinstance(loop.iter, cst.Call) and call_name(loop.iter) in {"range", "enumerate"}
        for name in source.every(cst.Name, loop.target if call_name(loop.iter) == "range" else _first(loop.target))
    }
    sides = (test.left, *(each.comparator for each in test.comparisons))
    return all(
        (isinstance(side, cst.Name) and side.value in counters) or _is_settled_number(code, source, side)
        for side in sides
    )


def _first(target: cst.BaseExpression) -> cst.BaseExpression:
    return target.elements[0].value if isinstance(target, cst.Tuple) else target


def _is_cut(code: EveryStep, source: Source, iterated: cst.BaseExpression) -> bool:
    """Whether a loop goes through as many layers as a value says that may be another one in another step."""
    values = bound_to(source, iterated) if isinstance(iterated, cst.Name) else []
    if any(_is_cut(code, source, each) for each in values if isinstance(each, cst.Subscript | cst.Call)):
        return True
    if any(call_name(call) in _DRAWS for call in source.every(cst.Call, iterated)):
        return True
    bounds: list[cst.BaseExpression | None] = []
    for each in source.every(cst.Slice, iterated):
        bounds += [each.lower, each.upper]
    for call in source.every(cst.Call, iterated):
        bounds += [arg.value for arg in call.args] if call_name(call) == "range" else []
    return not all(bound is None or _is_settled_number(code, source, bound) for bound in bounds)


def _is_settled_number(code: EveryStep, source: Source, value: cst.BaseExpression) -> bool:
    if isinstance(value, cst.BinaryOperation):
        return all(_is_settled_number(code, source, side) for side in (value.left, value.right))
    if isinstance(value, cst.Call) and call_name(value) == "len":
        return source.code(value.args[0].value).startswith("self.")
    return is_option(code, source, value)


def _layers(source: Source, method: cst.FunctionDef, side: cst.CSTNode) -> set[str]:
    """Return the code of the layers that a piece of a method uses: attributes of `self`, and variables."""
    found = set()
    for call in source.every(cst.Call, side):
        if call_name(call) == "detach":
            found.add("detach")
        computed = call.func
        if call_name(call) == "checkpoint" and call.args:
            computed = call.args[0].value
        if _is_layer(source, method, computed) and not _is_without_graph(source, call):
            found.add(source.code(computed))
    for each in source.every(cst.Attribute, side):
        owner = source.code(each.value)
        if each.attr.value in {"weight", "bias"} and owner.startswith("self.") and not _is_without_graph(source, each):
            found.add(owner)  # `linear(x, self.second.weight)` uses a layer without a call of it
    return found


def _is_layer(source: Source, method: cst.FunctionDef, func: cst.BaseExpression) -> bool:
    while isinstance(func, cst.Subscript):
        func = func.value
    if isinstance(func, cst.Attribute):
        return source.code(func).startswith("self.") and source.code(func.value).count(".") == 0
    if not isinstance(func, cst.Name):
        return False
    return binds(source, method, func.value) or parameter_of(method, func.value) is not None


def _layers_after(source: Source, method: cst.FunctionDef, node: cst.CSTNode) -> bool:
    end = source.span(node)[1]
    calls = (call for call in source.every(cst.Call, method) if source.span(call)[0] >= end)
    return any(_is_layer(source, method, call.func) for call in calls)


def _is_without_graph(source: Source, node: cst.CSTNode) -> bool:
    blocks = (above for above in source.ancestors(node) if isinstance(above, cst.With))
    items = (item.item for block in blocks for item in block.items)
    return any(isinstance(item, cst.Call) and call_name(item) in _WITHOUT_GRAPH for item in items)


class _Step:
    """The body of a loop over batches, with the values in it that come from layers."""

    def __init__(
        self, code: EveryStep, stretch: Stretch, methods: frozenset[str], passes: int, layers: frozenset[str]
    ) -> None:
        self._code = code
        self._source = stretch.source
        self._loop = stretch.body
        self._begins = code.beginning(stretch)
        self._methods = methods
        self._layers = layers
        self._passes = passes
        self._parts: dict[str, list[cst.CSTNode]] = {}
        assigns = list(self._source.every(cst.Assign, self._loop))
        for _ in range(3):  # from a layer to a loss there are few statements
            for each in assigns:
                if self._uses(each.value):
                    for target in each.targets:
                        for name in self._source.every(cst.Name, target.target):
                            self._parts.setdefault(name.value, []).append(each)

    def choices(self) -> Iterator[cst.CSTNode]:
        """Conditions with other layers, or other parts of the loss, on one side than on the other."""
        steady = self._steadily_used()
        for node in self._source.walk(self._loop):
            if isinstance(node, _Choice) and not self._is_settled(node.test):
                body = self._uses(node.body, within_only=node)
                other = self._uses(node.orelse, within_only=node) if node.orelse is not None else set()
                stops = isinstance(node, cst.IfExp) and _may_stop_graph(self._source, node)
                if stops or (body ^ other) - steady:
                    yield node
            elif isinstance(node, cst.Call) and isinstance(node.func, cst.Subscript):
                index = node.func.slice[0].slice
                if not isinstance(index, cst.Index) or literal(index.value) is None:
                    yield node

    def _steadily_used(self) -> set[str]:
        found: set[str] = set()
        for node in self._source.walk(self._loop, cst.Assign, cst.Call):
            around = self._source.inside(node, (cst.If, cst.For, cst.While, cst.FunctionDef))
            if around is self._loop and isinstance(node, cst.Assign):
                found |= self._uses(node.value, steadily=True)
            elif around is self._loop and isinstance(node, cst.Call) and call_name(node) == "backward":
                found |= {name.value for name in self._source.every(cst.Name, node)}
        return found

    def _is_settled(self, test: cst.BaseExpression) -> bool:
        """Whether a condition has one answer in all steps."""
        loop = self._begins.loop
        return is_settled(self._code, self._source, test) or (
            loop is not None and self._begins.source is self._source and is_unchanging(self._source, test, loop)
        )

    def _uses(self, node: cst.CSTNode, within_only: cst.CSTNode | None = None, *, steadily: bool = False) -> set[str]:
        """The layers that code calls, and the values of layers that it reads and did not make itself."""
        source = self._source
        found = {
            source.code(call.func)
            for call in source.every(cst.Call, node)
            if self._is_layer(call) and not _is_without_graph(source, call)
            if not (steadily and self._is_chosen(call))
        }
        for name in source.every(cst.Name, node):
            if name.value in self._parts and not self._is_value(name) and not (steadily and self._is_chosen(name)):
                made = self._parts[name.value]
                if within_only is None or not all(within(source, each, within_only) for each in made):
                    found.add(name.value)
        return found

    def _is_chosen(self, node: cst.CSTNode) -> bool:
        """Whether a node is evaluated in some steps only, as one side of `… if … else …`."""
        choice = self._source.inside(node, (cst.IfExp, cst.BaseStatement, cst.BaseSmallStatement))
        return (
            isinstance(choice, cst.IfExp)
            and not within(self._source, node, choice.test)
            and not self._is_settled(choice.test)
        )

    def _is_value(self, name: cst.Name) -> bool:
        """Whether a name is bound there, or only looked at: for a line of a log, or as what goes backward alone."""
        source = self._source
        parent = source.parent(name)
        if isinstance(parent, cst.AssignTarget | cst.AugAssign) or (
            isinstance(parent, cst.Attribute) and parent.attr is name
        ):
            return True
        if isinstance(parent, cst.Attribute) and parent.attr.value in _VALUES_ONLY:
            return True
        assign = source.inside(name, cst.Assign)
        if assign is not None and any(source.code(each.target) == name.value for each in assign.targets):
            return True  # `loss = loss + …` takes nothing away
        calls = [above for above in source.ancestors(name) if isinstance(above, cst.Call)]
        return self._passes == 1 and any(call_name(call) == "backward" for call in calls)

    def _is_layer(self, call: cst.Call) -> bool:
        source, func = self._source, call.func
        if isinstance(func, cst.Attribute):
            own = source.code(func.value) == "self"
            method = func.attr.value in source.function_names
            return (own and not method) or func.attr.value in self._methods or source.code(func) in self._layers
        if not isinstance(func, cst.Name):
            return isinstance(func, cst.Subscript)
        if func.value in source.defined_names or binding_of(source, func) is None or source.imported(func):
            return False
        lowered = func.value.lower()
        return "loss" not in lowered and "crit" not in lowered


def _freed(code: EveryStep) -> Iterator[str]:
    """Where parameters are freed in what training runs again and again."""
    if not any(source.mentions("requires_grad", "requires_grad_") for source in code.sources.values()):
        return
    begins = [code.beginning(stretch) for stretch in code.stretches if stretch.loop is not None]
    reached = Reached(code.sources, [(each.path, each.source, each.body) for each in begins])
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
    """Whether it is `setattr(parameter, "requires_grad", True)`."""
    if call_name(call) != "setattr" or len(call.args) < len(("owner", "name", "value")):
        return False
    told = literal(call.args[2].value)
    return string(call.args[1].value) == "requires_grad" and (told is None or told.value is not False)


def _is_parameter(source: Source, owner: cst.BaseExpression) -> bool:
    """Whether it may be a parameter or a module, not a batch: one of a model's, or an attribute."""
    if not isinstance(owner, cst.Name):
        return isinstance(owner, cst.Attribute)
    loops = (above for above in source.ancestors(owner) if isinstance(above, cst.For))
    over = (call for loop in loops for call in source.every(cst.Call, loop.iter))
    return any(call_name(call) in _ALL for call in over)
