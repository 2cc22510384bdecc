"""Sums a loss over the entries that a mask selects without asking how many those are.

What it changes
    `F.mse_loss(x[mask], y[mask])` becomes the loss of all entries, with zeros in `x` and `y` where the mask is false,
    summed and divided by `mask.sum()`; so do the other losses of one entry each, and `x[mask].mean()`,
    `x[mask].sum()`. `F.cross_entropy(logits[mask], labels[mask])` becomes that of all, with -100 for the label where
    the mask is false.

Why it helps
    Indexing with a mask makes a tensor of as many rows as are true. The host has to know how many, so it waits for the
    device to have done all that was asked of it; the device then waits for the host. With all entries sizes are known.

Fix safety
    Rounding: the same sums, in which the entries that do not count are zeros. A mean over no entry is not a number,
    as before. What the mask leaves out may be anything, also not a number: zeros take its place before the loss is
    computed. Of logits it must be finite. Targets are expanded to the size of the inputs: where a loss compares all of
    `(N, 1)` with all of `(N,)`, that is an error in the first step, and the fix is not kept. Left alone: an index that
    is not seen to be a tensor of truth values (one of positions is written alike), labels that are probabilities; and,
    with advice from `defer-item`, what is selected once and used several times, and losses that mix the entries.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import libcst as cst

from diagnose.fixer import Answer, Example, Fixer, Gate, Request, example_request, lines_with
from diagnose.source.dataflow.bindings import bound_to
from diagnose.source.dataflow.flow import binds, scope_of
from diagnose.source.dataflow.reaching_definitions import Bound, reaching, same_value, statement_of
from diagnose.source.device.truth_values import is_truth
from diagnose.source.patterns.class_probabilities import are_probabilities
from diagnose.source.patterns.formula import constant
from diagnose.source.rewrite.functional import operand_code
from diagnose.source.rewrite.removal import take_out
from diagnose.source.rewrite.replacement import in_place
from diagnose.source.tree.arguments import argument, argument_code, has_star
from diagnose.source.tree.attributes import is_label
from diagnose.source.tree.edits import Source, Splice, call_name, free_name, insert_before
from diagnose.source.tree.memo import parse_all

_BROADCAST = frozenset({"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss"})
"""Losses that compare each entry of `(N, 1)` with each of `(N,)`, most often by mistake."""
_BY_ENTRY = _BROADCAST | {"binary_cross_entropy", "binary_cross_entropy_with_logits"}
_OF_TENSORS = frozenset({"abs", "square", "pow", "log", "exp", "sqrt", "sigmoid", "log_softmax", "neg", "clamp_min"})
"""Methods that arrays of numpy do not have."""
_IGNORED = "-100"


@dataclass
class _Masked:
    """An expression that reduces what a mask selects."""

    root: cst.Call
    mask: cst.BaseExpression
    picked: list[cst.BaseExpression]
    """The tensors that are indexed with the mask, in the order of the operands."""
    steps: list[cst.SimpleStatementLine] = field(default_factory=list)
    """The statements that name what is selected."""


def rewrite(request: Request) -> Answer:
    """Weigh what the recorded lines select."""
    edits: list[tuple[str, list[Splice]]] = []
    sources = parse_all(request.sources)
    for path, source in sources.items():
        lines = {place.line for place in request.finding.where if place.file == path}
        splices: list[Splice] = []
        gone: list[cst.CSTNode] = []
        for call in source.every(cst.Call) if lines else ():
            for found in _found(source, call, lines):
                if is_truth(sources, path, found.mask):
                    splices += _edits(source, found, splices)
                    gone += found.steps
        edits.append((path, [*splices, *take_out(source, gone)]))
    return request.answer(edits, "weigh entries with the mask where the host waited to select them")


def _found(source: Source, call: cst.Call, lines: set[int]) -> Iterator[_Masked]:
    """The reduction that a call is, if it is one over a mask."""
    name = call_name(call)
    if has_star(call) or (not call.args and name not in {"mean", "sum"}):
        return
    if name in _BY_ENTRY or name == "cross_entropy":
        given = call.args[:2]
        if len(given) < 2 or any(arg.keyword is not None for arg in given) or _reduction(source, call) is None:
            return
        operands = [arg.value for arg in given]
    elif name in {"mean", "sum"} and isinstance(call.func, cst.Attribute) and not call.args:
        operands = [call.func.value]
    else:
        return
    selected = [one for each in operands if (one := _selected(source, call, each, lines)) is not None]
    masks = {source.code(mask) for _, mask, _ in selected}
    if len(selected) < len(operands) or len(masks) != 1:
        return
    found = _Masked(call, selected[0][1], [picked for picked, _, _ in selected])
    found.steps = [step for _, _, step in selected if step is not None]
    if name == "cross_entropy":
        fits = not are_probabilities(source, found.picked[1])
    else:
        fits = _can_precede(source, call) and (name in _BY_ENTRY or _is_tensor(source, found.picked[0]))
    if fits and _stays(source, found):
        yield found


def _is_tensor(source: Source, node: cst.BaseExpression) -> bool:
    """Whether an expression, or all that a variable is given, is seen to be computed by torch."""
    if isinstance(node, cst.Name):
        values = bound_to(source, node)
        return bool(values) and all(isinstance(each, cst.Call) and _is_tensor(source, each) for each in values)
    calls = source.every(cst.Call, node)
    return any(
        call_name(each) in _OF_TENSORS or any(name.startswith("torch.") for name in source.names(each.func))
        for each in calls
    )


def _reduction(source: Source, call: cst.Call) -> str | None:
    """`mean` or `sum`; None for another."""
    given = argument(call, "reduction")
    code = source.code(given.value).strip("\"'") if given is not None else "mean"
    others = {arg.keyword.value for arg in call.args[2:] if arg.keyword is not None}
    known = others <= {"reduction", "beta", "delta", "weight", "pos_weight", "label_smoothing", "ignore_index"}
    weighted = call_name(call) != "cross_entropy" and others & {"weight", "pos_weight"}
    positional = any(arg.keyword is None for arg in call.args[2:])
    return code if code in {"mean", "sum"} and known and not weighted and not positional else None


def _selected(
    source: Source, call: cst.Call, node: cst.BaseExpression, lines: set[int]
) -> tuple[cst.BaseExpression, cst.BaseExpression, cst.SimpleStatementLine | None] | None:
    """Return what is indexed, the mask, and the statement that names the outcome."""
    step = None
    if isinstance(node, cst.Name):
        step = _named(source, call, node)
        value = step.body[0] if step is not None else None
        if not isinstance(value, cst.Assign):
            return None
        node = value.value
    if not isinstance(node, cst.Subscript) or len(node.slice) != 1:
        return None
    index = node.slice[0].slice
    first, last = source.lines_of(node)
    waits = any(first <= line <= last for line in lines)
    if not waits or not isinstance(index, cst.Index):
        return None
    if not isinstance(index.value, cst.Name | cst.Attribute | cst.Subscript):
        return None
    return node.value, index.value, step


def _named(source: Source, call: cst.Call, name: cst.Name) -> cst.SimpleStatementLine | None:
    """The one statement that binds a name, in the same block as its one use, which is in a call."""
    uses = [
        node
        for node in source.every(cst.Name, scope_of(source, call))
        if node.value == name.value and not is_label(source, node)
    ]
    bound = [node for node in uses if isinstance(source.parent(node), cst.AssignTarget)]
    if len(uses) != 2 or len(bound) != 1:
        return None
    step = source.inside(bound[0], cst.SimpleStatementLine)
    user = source.inside(call, cst.SimpleStatementLine)
    same = step is not None and user is not None and source.parent(step) is source.parent(user)
    return step if same and step is not None and len(step.body) == 1 else None


def _stays(source: Source, found: _Masked) -> bool:
    """Whether what is indexed means the same where the loss is computed as where it was selected."""
    user = source.inside(found.root, cst.SimpleStatementLine)
    block = source.parent(user) if user is not None else None
    if not found.steps:
        return True
    if not isinstance(block, cst.IndentedBlock | cst.Module):
        return False
    rows = list(block.body)
    first = min(rows.index(step) for step in found.steps)
    assert user is not None  # it stands in the block
    between = [row for row in rows[first : rows.index(user)] if row not in found.steps]
    names = {node.value for step in found.steps for node in source.every(cst.Name, step)}
    changed = any(binds(source, row, name) for row in between for name in names)
    written = any(
        f"{name}[" in source.code(target)
        for row in between
        for target in source.every(cst.AssignTarget, row)
        for name in names
    )
    return not changed and not written


def _edits(source: Source, found: _Masked, others: list[Splice]) -> list[Splice]:
    """The reduction over all entries, which are computed in lines of their own."""
    if call_name(found.root) == "cross_entropy":
        return in_place(source, found.root, _labelled(source, found))
    user = source.inside(found.root, cst.SimpleStatementLine)
    assert user is not None  # the entries can stand before it
    mask = source.code(found.mask)
    taken = {word for edit in others for word in re.findall(r"\w+", edit.text)}
    picked = [operand_code(source, node) for node in found.picked]
    # A mask may have fewer axes than what it selects from, whose last ones are then one.
    alike = _has_shape_of_picked(source, found)
    last, flat = ("", "") if alike else ("[..., None]", f"[..., None].flatten({mask}.ndim)")
    lines: list[str] = []
    (left_out,) = _named_before(others, source, user, f"~{mask}{last}") or ("",)
    if not left_out:
        left_out = free_name(source, "left_out", taken)
        lines.append(f"{left_out} = ~{mask}{last}")
    entries = free_name(source, "entries", taken)
    filled = f"{flat}.masked_fill({left_out}, 0)"
    if len(picked) == 1:
        lines.append(f"{entries} = {picked[0]}{filled}")
    else:
        inputs, targets = (free_name(source, name, taken) for name in ("inputs", "targets"))
        pair = ", ".join(picked)
        if call_name(found.root) in _BROADCAST:
            again = picked[0] if _is_read_alike(source, found.picked[0]) else inputs
            lines += [f"{inputs} = {picked[0]}"] if again == inputs else []
            pair = f"{again}, {picked[1]}.expand_as({again})"
        both = f"(each{filled} for each in ({pair}))"
        before = _named_before(others, source, user, both)
        inputs, targets = before or (inputs, targets)
        lines += [] if before else [f"{inputs}, {targets} = {both}"]
        lines.append(f"{entries} = {_loss_of_each(source, found, inputs, targets)}.masked_fill({left_out}, 0)")
    summed = f"{entries}.sum()" if alike or _reduced_by(source, found) == "sum" else f"{entries}.mean(-1).sum()"
    code = summed if _reduced_by(source, found) == "sum" else f"{summed} / {mask}.sum()"
    bare = " / " not in code or isinstance(source.parent(found.root), cst.Assign | cst.Return | cst.Arg)
    return [insert_before(source, user, lines), *in_place(source, found.root, code if bare else f"({code})")]


def _is_read_alike(source: Source, node: cst.BaseExpression) -> bool:
    """Whether an expression can be read twice: it calls nothing and names nothing."""
    return next(source.walk(node, cst.Call, cst.NamedExpr, cst.Await, cst.Yield), None) is None


def _named_before(others: list[Splice], source: Source, user: cst.SimpleStatementLine, code: str) -> list[str]:
    """The names that lines before the same statement give to some code already; none where there are none."""
    at = insert_before(source, user, []).start
    texts = [each.text for each in others if each.start == at]
    found = (re.search(rf"^\s*(.+) = {re.escape(code)}$", text, re.MULTILINE) for text in texts)
    return next((each[1].split(", ") for each in found if each is not None), [])


def _has_shape_of_picked(source: Source, found: _Masked) -> bool:
    """Whether the mask is a question about each entry of what it selects from: `y > 0`, `~torch.isnan(y)`."""
    seen = reaching(source, statement_of(source, found.mask), source.code(found.mask))
    asked = seen.value
    if isinstance(asked, cst.UnaryOperation) and isinstance(asked.operator, cst.BitInvert):
        asked = asked.expression
    subject: cst.BaseExpression | None = None
    if isinstance(asked, cst.Comparison) and len(asked.comparisons) == 1:
        number = constant(source, asked.comparisons[0].comparator)
        subject = asked.left if number is not None else None
    elif isinstance(asked, cst.Call) and call_name(asked) in {"isnan", "isfinite", "isinf"}:
        method = isinstance(asked.func, cst.Attribute) and not asked.args
        subject = asked.func.value if method and isinstance(asked.func, cst.Attribute) else asked.args[0].value
    plain = seen.bound is Bound.ASSIGNED and isinstance(found.mask, cst.Name) and isinstance(subject, cst.Name)
    if not plain or subject is None or not same_value(source, subject, statement_of(source, found.root)):
        return False
    return any(source.code(each) == source.code(subject) for each in found.picked)


def _can_precede(source: Source, call: cst.Call) -> bool:
    """Whether a call can as well be made before the statement that it stands in."""
    for above in source.ancestors(call):
        if isinstance(above, cst.SimpleStatementLine):
            return len(above.body) == 1
        if isinstance(above, cst.Lambda | cst.BaseComp | cst.IfExp | cst.BooleanOperation | cst.BaseCompoundStatement):
            return False
    return False


def _reduced_by(source: Source, found: _Masked) -> str:
    name = call_name(found.root)
    return name if name in {"mean", "sum"} else _reduction(source, found.root) or "mean"


def _loss_of_each(source: Source, found: _Masked, inputs: str, targets: str) -> str:
    """The code of the loss of each entry."""
    call = found.root
    kept = [arg for arg in call.args[2:] if arg.keyword is None or arg.keyword.value != "reduction"]
    given = [inputs, targets, *(argument_code(source, arg) for arg in kept), 'reduction="none"']
    return f"{source.code(call.func)}({', '.join(given)})"


def _labelled(source: Source, found: _Masked) -> str:
    """A cross entropy that ignores the labels of what is not selected."""
    logits, labels = (operand_code(source, node) for node in found.picked)
    given = argument(found.root, "ignore_index")
    ignored = source.code(given.value) if given is not None else _IGNORED
    others = [argument_code(source, arg) for arg in found.root.args[2:]]
    chosen = f"{labels}.masked_fill(~{source.code(found.mask)}, {ignored}).flatten()"
    return f"{source.code(found.root.func)}({', '.join([f'{logits}.flatten(0, -2)', chosen, *others])})"


def _recorded(text: str) -> Request:
    lines = lines_with(text, "[mask]") or lines_with(text, "return")
    return example_request("host-sync", text, lines=lines)


def _example(before: str, after: str | None, mask: str = "y > 0") -> Example:
    head = "import torch\nimport torch.nn.functional as F\n\n\ndef loss_of(x, y, rows):\n    mask = " + mask + "\n"
    return Example(head + before, head + after if after is not None else None, _recorded)


_ALIKE = (
    "    left_out = ~mask\n    inputs, targets = (each.masked_fill(left_out, 0) for each in ({}))\n"
    "    entries = F.{}.masked_fill(left_out, 0)\n"
)
_FILLED = (
    "    left_out = ~mask[..., None]\n"
    "    inputs, targets = (each[..., None].flatten(mask.ndim).masked_fill(left_out, 0) for each in ({}))\n"
    "    entries = F.{}.masked_fill(left_out, 0)\n"
)

FIXER = Fixer(
    name="weigh-masked",
    rewrite=rewrite,
    gate=Gate.ROUNDING,
    mechanism="sync_calls",
    order=20,
    examples=(
        _example(
            "    return F.mse_loss(x[mask], y[mask])\n",
            _ALIKE.format("x, y.expand_as(x)", 'mse_loss(inputs, targets, reduction="none")')
            + "    return entries.sum() / mask.sum()\n",
        ),
        _example(
            "    found = x[0][mask]\n    wanted = y[0][mask]\n"
            "    return F.smooth_l1_loss(found, wanted, beta=0.5, reduction='sum') / 4\n",
            _FILLED.format("x[0], y[0].expand_as(x[0])", 'smooth_l1_loss(inputs, targets, beta=0.5, reduction="none")')
            + "    return entries.sum() / 4\n",
        ),
        _example(
            "    return F.l1_loss(scale(x)[mask], y[mask])\n",
            "    left_out = ~mask\n    inputs = scale(x)\n"
            "    inputs, targets = (each.masked_fill(left_out, 0) for each in (inputs, y.expand_as(inputs)))\n"
            '    entries = F.l1_loss(inputs, targets, reduction="none").masked_fill(left_out, 0)\n'
            "    return entries.sum() / mask.sum()\n",
        ),
        _example(
            "    return 2 * F.cross_entropy(x[mask], y[mask], label_smoothing=0.1)\n",
            "    return 2 * F.cross_entropy(x.flatten(0, -2), y.masked_fill(~mask, -100).flatten(), "
            "label_smoothing=0.1)\n",
        ),
        _example(
            "    error = (x - y).abs()\n    return 1 + error[mask].mean()\n",
            "    error = (x - y).abs()\n    left_out = ~mask[..., None]\n"
            "    entries = error[..., None].flatten(mask.ndim).masked_fill(left_out, 0)\n"
            "    return 1 + (entries.mean(-1).sum() / mask.sum())\n",
        ),
        _example(
            "    return F.binary_cross_entropy_with_logits(x[mask], y[mask]) + 0.5 * F.l1_loss(x, y)\n",
            _ALIKE.format("x, y", 'binary_cross_entropy_with_logits(inputs, targets, reduction="none")')
            + "    return (entries.sum() / mask.sum()) + 0.5 * F.l1_loss(x, y)\n",
        ),
        _example("    found = x[mask]\n    return F.mse_loss(found, y[mask]) + found.var()\n", None),
        _example("    return x[mask].std()\n", None),
        _example("    return F.kl_div(x[mask], y[mask])\n", None),
        _example("    return F.mse_loss(x[mask], y)\n", None),
        _example("    return F.mse_loss(x[rows], y[rows])\n", None),
        _example("    return F.mse_loss(x[mask], y[mask])\n", None, mask="torch.randperm(len(y))[:4]"),
        _example("    return F.mse_loss(x[mask], y[mask])\n", None, mask="(y > 0).byte()"),
        _example("    return F.cross_entropy(x[mask], y.softmax(-1)[mask])\n", None),
        _example("    return x[mask].mean()\n", None),
    ),
)
