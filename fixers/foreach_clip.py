"""Takes the norm of all gradients, and clips them, in a few launches.

What it changes
    A loop that adds up the norms of the gradients parameter by parameter gives way to
    `torch.nn.utils.clip_grad_norm_`: to the call that the program makes anyway after it, whose result is the norm; or,
    where the program clips by hand with the same outcome, to a new one in the place of all of that. Else the norm comes
    from `torch.nn.utils.get_total_norm`, and so does one that `sum(p.grad.norm().item() ** 2 for …)` computes.
    `foreach=False` in such calls goes.

Why it helps
    One norm for each parameter is a launch or two for each, and with `.item()` a wait for each as well. The functions
    of torch take the norms of all gradients of a device in a few launches, and read nothing back.

Fix safety
    Rounding: a norm of norms, added up in another order. Where only the log shows it, the training keeps its bits. A
    norm that was a number stays one, and is read once; one that was a tensor stays a tensor. A norm that is NaN makes
    all gradients NaN in `clip_grad_norm_`: hand-written clipping that then leaves them as they are, `if factor < 1`,
    is kept, with its norm taken at once.
    Left alone: another formula than torch's (another norm, another epsilon), loops that do more than that, and norms
    that are differentiated, `loss.backward(create_graph=True)`.
"""

from __future__ import annotations

import re

import libcst as cst

from diagnose.fixer import Advice, Answer, Edits, Example, Fixer, Gate, Request, example_request
from diagnose.source.dataflow.flow import scope_of, uses_of, within
from diagnose.source.optimizers.gradient_norms import NormLoop, clipped_by_hand, norm_loops, norm_sums
from diagnose.source.rewrite.removal import remove_statements
from diagnose.source.rewrite.with_blocks import block_of
from diagnose.source.tree.arguments import argument, remove_argument
from diagnose.source.tree.edits import Source, Splice, call_name, ensure_import, replace
from diagnose.source.tree.memo import parse_all
from diagnose.source.tree.syntax import only_statement

_OTHER_DEVICES = re.compile(r"\b(?:npu|mps|xpu|hpu|mlu|xla|tpu|cpu)\b")
_NOT_THE_GRADIENTS = re.compile(r"backward\(|\.grad\b|\.step\(|unscale_|zero_grad|all_reduce")


_WORDS = frozenset({"grad", "clip_grad_norm_", "get_total_norm"})


def rewrite(request: Request) -> Answer:
    """Replace every loop over norms that is understood."""
    edits: list[tuple[str, list[Splice]]] = []
    reasons: list[str] = []
    parsed = parse_all(request.sources)
    differentiates = any("create_graph" in each.words for each in parsed.values())
    for path, source in parsed.items():
        if not source.mentions("grad") or source.words.isdisjoint(_WORDS):
            continue
        for call in source.calls_named("clip_grad_norm_", "get_total_norm"):
            given = argument(call, "foreach")
            if given is not None and source.code(given.value) == "False" and not _is_for_another_device(source, call):
                edits.append((path, [remove_argument(source, call, given)]))
        for loop in norm_loops(source, parsed):
            found = _edit(source, loop) if loop.is_number or not differentiates else None  # torch's have no graph
            if found is None:
                line = source.lines_of(loop.statements[0])[0]
                reasons.append(f"{path}:{line} takes a norm for each parameter, in a way that is not followed further")
                continue
            edits.append((path, found))
        for each in norm_sums(source):
            torch, imports = ensure_import(source, "torch")
            code = f"{torch}.nn.utils.get_total_norm({each.gradients}).item()"
            edits.append((path, [*imports, replace(source, each.node, code if each.is_root else f"({code} ** 2)")]))
    files = request.edited(edits)
    if files:
        return Edits(files, "take the norm of all gradients in a few launches")
    by_hand = "torch.nn.utils.clip_grad_norm_(parameters, largest) gives the norm of all, and waits for none."
    return Advice(f"{'; '.join(reasons)}: {by_hand}") if reasons else None


def _is_for_another_device(source: Source, call: cst.Call) -> bool:
    """Whether a call stands under a condition that names a kind of device on which it runs so."""
    branches = (above for above in source.ancestors(call) if isinstance(above, cst.If))
    return any(_OTHER_DEVICES.search(source.code(branch.test)) for branch in branches)


def _edit(source: Source, loop: NormLoop) -> list[Splice] | None:
    """The edits of one loop; None where it is not followed."""
    torch, imports = ensure_import(source, "torch")
    by_hand = clipped_by_hand(source, loop)
    if by_hand is not None and by_hand.spreads_nan:
        call = f"{torch}.nn.utils.clip_grad_norm_({loop.parameters}, {by_hand.largest})"
        code = _named(source, loop, call, by_hand.statements)
        return [*imports, _over(source, (*loop.statements, *by_hand.statements), code)]
    clip = _clip_after(source, loop)
    if clip is not None:
        code = _named(source, loop, source.code(clip), ())
        return [*remove_statements(source, _single(loop.statements)), replace(source, clip, code)]
    if by_hand is None and _own_clipping_after(source, loop):
        return None
    gradients = f"[p.grad for p in {loop.parameters} if p.grad is not None]"
    return [
        *imports,
        _over(source, loop.statements, _named(source, loop, f"{torch}.nn.utils.get_total_norm({gradients})", ())),
    ]


def _single(statements: tuple[cst.CSTNode, ...]) -> list[cst.BaseSmallStatement | cst.BaseCompoundStatement]:
    lines = [each.body if isinstance(each, cst.SimpleStatementLine) else [each] for each in statements]
    return [
        small
        for line in lines
        for small in line
        if isinstance(small, cst.BaseSmallStatement | cst.BaseCompoundStatement)
    ]


def _over(source: Source, statements: tuple[cst.CSTNode, ...], code: str) -> Splice:
    start, end = source.span(statements[0])[0], source.span(statements[-1])[1]
    return Splice(start, start + len(source.text[start:end].rstrip()), code)


def _clip_after(source: Source, loop: NormLoop) -> cst.Call | None:
    """A later statement of the block that clips the same gradients and drops the norm that it gets."""
    block = list(block_of(source, loop.statements[0]) or ())
    for statement in block[block.index(loop.statements[-1]) + 1 :]:
        small = only_statement(statement)
        call = small.value if isinstance(small, cst.Expr) else None
        if isinstance(call, cst.Call) and call_name(call) == "clip_grad_norm_":
            given = argument(call, "parameters", 0)
            kind = argument(call, "norm_type", 2)
            same = given is not None and source.code(given.value) == loop.parameters
            return call if same and (kind is None or source.code(kind.value) in {"2", "2.0"}) else None
        if _NOT_THE_GRADIENTS.search(source.code(statement)) or loop.total in source.code(statement):
            return None
    return None


def _own_clipping_after(source: Source, loop: NormLoop) -> bool:
    """Whether the gradients are scaled by something that the norm decides, in a way that is not torch's."""
    around = scope_of(source, loop.statements[0])
    end = source.span(loop.statements[-1])[1]
    return any(
        re.search(r"\.grad(?:\.data)?(?:\.mul_|\.div_|\s*[*/]=)", source.code(statement))
        for statement in source.every(cst.SimpleStatementLine, around)
        if source.span(statement)[0] > end
    )


def _named(source: Source, loop: NormLoop, call: str, gone: tuple[cst.CSTNode, ...]) -> str:
    """The call, and what takes its value: of a number that is only shown the tensor, which is read only there."""
    own = (*loop.statements, *gone)
    name = loop.norm or loop.total
    number = ".item()" if loop.is_number else ""
    if loop.norm is not None and loop.norm != loop.total and _is_read(source, loop.total, own):
        return f"{name} = {call}{number}; {loop.total} = {name} ** 2"
    if not name.isidentifier():  # an attribute or an entry, which others may read
        return f"{name} = {call}{number}{'' if loop.norm else ' ** 2'}"
    uses = uses_of(source, scope_of(source, loop.statements[0]), name)
    reads = [use for use in uses.reads if not any(within(source, use, each) for each in own)]
    if not reads and uses.lost is None:
        return call
    shown = uses.lost is None and all(_is_shown(source, use) for use in reads)
    return f"{name} = {call}{'' if shown else number}{'' if loop.norm else ' ** 2'}"


def _is_read(source: Source, name: str, own: tuple[cst.CSTNode, ...]) -> bool:
    """Whether anything but some statements may read a variable; of an attribute or an entry anybody may."""
    if not name.isidentifier():
        return True
    uses = uses_of(source, scope_of(source, own[0]), name)
    return uses.lost is not None or any(not any(within(source, use, each) for each in own) for use in uses.reads)


def _is_shown(source: Source, use: cst.BaseExpression) -> bool:
    """Whether a tensor does as well as a number: in a formatted string with a format, or as the argument of a root."""
    part = source.inside(use, cst.FormattedStringExpression)
    around = source.parent(source.parent(use)) if isinstance(source.parent(use), cst.Arg) else None  # type: ignore[arg-type]
    rooted = isinstance(around, cst.Call) and source.code(around.func) == "math.sqrt"
    return rooted or (part is not None and part.format_spec is not None and part.expression is use)


def _program(update: str, after: str = "") -> str:
    return (
        "import math\nimport torch\n\nfor x in loader:\n    model(x).sum().backward()\n"
        f"{update}    optimizer.step()\n{after}"
    )


def _recorded(text: str) -> Request:
    return example_request("host-sync", text)


_LOOP = (
    "    total = 0.0\n    for p in model.parameters():\n        if p.grad is not None:\n"
    "            total += p.grad.data.norm(2).item() ** 2\n"
)
_CLIP = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
_ROOT = "    total = total ** (1. / 2)\n"
_SCALED = (
    "    scale = largest / (total + 1e-6)\n    if scale < 1:\n        for p in model.parameters():\n"
    "            p.grad.data.mul_(scale)\n"
)
_SHOWN = "    if i % 9 == 0:\n        print(f'{math.sqrt(total):.3f}')\n"

FIXER = Fixer(
    name="foreach-clip",
    rewrite=rewrite,
    gate=Gate.ROUNDING,
    mechanism="compute+idle.sync+idle.python+idle.dispatch+idle.launch",
    order=15,
    examples=(
        Example(
            _program(_LOOP + f"    {_CLIP}  # stable\n", _SHOWN),
            _program(f"    total = {_CLIP} ** 2  # stable\n", _SHOWN),
            _recorded,
        ),
        Example(
            _program(
                _LOOP + "    total = total ** (1. / 2)\n    scale = min(largest / (total + 1e-6), 1.0)\n"
                "    for p in model.parameters():\n        p.grad.data.mul_(scale)\n"
            ),
            _program("    torch.nn.utils.clip_grad_norm_(model.parameters(), largest)\n"),
            _recorded,
        ),
        Example(
            _program(_LOOP + _ROOT + _SCALED),
            _program(
                "    total = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])"
                ".item()\n" + _SCALED
            ),
            _recorded,
        ),
        Example(
            _program(_LOOP + "    norm = math.sqrt(total)\n    history.append(norm)\n"),
            _program(
                "    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])"
                ".item()\n    history.append(norm)\n"
            ),
            _recorded,
        ),
        Example(
            _program("    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)\n"),
            _program("    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"),
            _recorded,
        ),
        Example(_program(f"    {_CLIP}\n"), None, _recorded),
        Example(_program(_LOOP.replace("norm(2)", "norm(1)")), None, _recorded),
        Example(
            _program(
                _LOOP + "    norm = total ** 0.5\n    if norm > 1:\n        for p in model.parameters():\n"
                "            p.grad.data.mul_(1 / norm)\n"
            ),
            None,
            _recorded,
        ),
    ),
)
