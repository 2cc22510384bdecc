"""Keeps activations that the backward pass computes again although there is room for them.

What it changes
    `checkpoint(block, x, use_reentrant=False)` becomes `block(x)`. In a loop over blocks, those of a plan stay
    checkpointed (`if number < 9`): the cheapest with which the peak fits, from the bytes and times that the run
    measured of each block; without them every other block does, as a setting. An `if` both sides of which then do the
    same is reduced to one. Calls of `gradient_checkpointing_enable()`, of `enable_gradient_checkpointing()` and of
    `apply_activation_checkpointing(…)` go, `gradient_checkpointing=True` among the arguments of a trainer becomes
    `False`.

Why it helps
    A checkpointed block runs its forward pass twice, up to a third of the device's work. Where memory is free, nothing
    is bought for that.

Fix safety
    Bitwise: the second forward pass only computed again what the first one had. Memory grows by the activations that
    are now kept: what does not fit in its trial is not kept, and its peak stands beside the saving; longer inputs
    later in the run need more. A reentrant checkpoint none of whose inputs needs a gradient trains no parameter;
    without it they are trained, and the gate refuses the change. Where batches are normalised it changes the training:
    running statistics then move once a step instead of twice. Left alone, with advice: `checkpoint_sequential`,
    checkpointed lambdas, and a forward pass whose effects the second one repeats: it prints, counts, keeps values or
    draws numbers that are not torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import libcst as cst

from diagnose.fixer import Advice, Answer, Edits, Example, Fixer, Gate, Request, Scalar, example_request, word_diffs
from diagnose.memory import lighter_plans, read_blocks, read_plan, written_plan
from diagnose.source.dataflow.flow import loops_around
from diagnose.source.dataflow.iteration import numbered
from diagnose.source.rewrite.leftovers import without_from_import
from diagnose.source.rewrite.removal import remove_statements
from diagnose.source.training.batch_statistics import normalises_batches
from diagnose.source.training.block_calls import condition
from diagnose.source.training.repeated_forward import repeated_effect
from diagnose.source.tree.arguments import argument, argument_code
from diagnose.source.tree.edits import Source, Splice, call_name, free_name, parse, replace
from diagnose.source.tree.memo import files_with

_CHECKPOINT = "torch.utils.checkpoint.checkpoint"
_OPTIONS = frozenset({"use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop"})
"""Keywords that are the checkpoint's own; all others are the function's."""
_SWITCHES = frozenset(
    {"gradient_checkpointing_enable", "enable_gradient_checkpointing", "apply_activation_checkpointing"}
)
_NONE, _HALF = "none", "every other"
_ANYWHERE = 0
"""Stands for all lines."""
_NOT_BY_US = (
    "what is checkpointed here may be kept for the backward pass, as there is room: call the modules as they are, or "
    "checkpoint every other one. No edit is made: the functions are not named in the call"
)


def settings(request: Request) -> Sequence[Mapping[str, Scalar]]:
    """Plans from what was measured; else no checkpoints, and every other one where they are made in loops."""
    known = read_blocks(request.sites)
    if known is not None and known.again:
        limit = known.limit_bytes or request.facts.device_memory_bytes
        if lighter := sorted(lighter_plans(known, limit), key=known.chain.recompute_ns):
            return [{"checkpointed": written_plan(plan) or _NONE} for plan in lighter]
    parsed = [parse(text) for text in request.sources.values() if "checkpoint" in text]
    calls = [(source, call) for source in parsed if source is not None for call in _checkpoints(source)]
    if any(_turn(source, call) for source, call in calls):
        return ({"checkpointed": _NONE}, {"checkpointed": _HALF})
    return ({"checkpointed": _NONE},)


def rewrite(request: Request) -> Answer:
    """Take the checkpoints out of all files, or those of a setting out of loops over blocks."""
    wanted = str(request.setting.get("checkpointed", _NONE))
    tests = _tests(request, wanted)
    edits: list[tuple[str, list[Splice]]] = []
    advice: list[str] = []
    callers: set[tuple[str, int]] = set()
    for path, source in files_with(request.sources, "checkpoint"):
        some = _all(source) if wanted == _NONE else _some(source, tests.get(path, {}))
        edits.append((path, some))
        callers |= {(path, source.lines_of(call)[0]) for call in _checkpoints(source)} if some else set()
        advice += [f"{path}:{line}: {_NOT_BY_US}" for line in _lines_left(source)]
    if any(splices for _, splices in edits):
        which = {_NONE: "all blocks", _HALF: "every other checkpointed block"}.get(wanted, f"all blocks but {wanted}")
        effect = repeated_effect(request.sources, callers) if callers else None
        if effect is not None:
            return Advice(
                f"{effect}; without checkpoints there is no second pass. Call the blocks as they are by hand."
            )
        statistics = callers and normalises_batches(request.sources)
        gate = Gate.TRAINING if statistics else None
        return Edits(request.edited(edits), f"keep the activations of {which} for the backward pass", gate)
    return Advice("; ".join(dict.fromkeys(advice))) if advice else None


_Test = Callable[[str], str]
"""Makes the condition under which a block stays checkpointed from the number of its turn."""


def _tests(request: Request, wanted: str) -> dict[str, dict[int, _Test | None]]:
    """Return by file and line what is to be tested there; None where nothing stays checkpointed."""
    if wanted == _HALF:
        return {path: {_ANYWHERE: lambda number: f"{number} % 2"} for path in request.sources}
    known = read_blocks(request.sites) if wanted != _NONE else None
    found: dict[str, dict[int, _Test | None]] = {}
    for line in known.lines if known is not None else ():
        turns = known.of_line(line, read_plan(wanted)) if known is not None else ()
        test = partial(condition, chosen=turns, count=line.count) if turns else None
        found.setdefault(line.site.file, {})[line.site.line] = test
    return found


def _checkpoints(source: Source) -> Iterator[cst.Call]:
    """Calls of torch's checkpoint whose function can be called in their place."""
    for call in source.calls_of(_CHECKPOINT):
        if call.args:
            first = call.args[0]
            if (
                first.keyword is None
                and not first.star
                and isinstance(first.value, cst.Name | cst.Attribute | cst.Call)
            ):
                yield call


def _lines_left(source: Source) -> Iterator[int]:
    """Lines of checkpoints that are left as they are."""
    known = {id(call) for call in _checkpoints(source)}
    for call in source.calls_of(_CHECKPOINT, "torch.utils.checkpoint.checkpoint_sequential"):
        if id(call) not in known:
            yield source.lines_of(call)[0]


def _plain(source: Source, call: cst.Call) -> str:
    """The call of the checkpointed function itself."""
    function, *given = call.args
    kept = [arg for arg in given if arg.keyword is None or arg.keyword.value not in _OPTIONS]
    code = [argument_code(source, arg) for arg in kept]
    return f"{source.code(function.value)}({', '.join(code)})"


def _laid_out(source: Source, call: cst.Call) -> str:
    """The block's call without the checkpoint, with the lines and comments of a call over several lines that ends with
    the checkpoint's own arguments."""
    function, *given = call.args
    kept = [arg for arg in given if arg.keyword is None or arg.keyword.value not in _OPTIONS]
    left = source.text[source.wide_span(given[-1].value)[1] : source.span(call)[1]] if given else ""
    if not kept or len(kept) == len(given) or given[: len(kept)] != kept or left.lstrip(",")[:1] not in {"\n", "\r"}:
        return _plain(source, call)
    start, options = source.wide_span(function.value)[1], source.span(given[len(kept)])[0]
    arguments = source.text[start:options].lstrip().removeprefix(",").strip(" ")
    return f"{source.code(function.value)}({arguments.rstrip()}{left.lstrip(',')}"


def _all(source: Source) -> list[Splice]:
    splices: list[Splice] = []
    calls = list(_checkpoints(source))
    for call in calls:
        plain = _plain(source, call)
        splices.append(_one_side(source, call, plain) or replace(source, call, _laid_out(source, call)))
    asked = source.every(cst.Call) if not source.words.isdisjoint(_SWITCHES) else ()
    switches = [call for call in asked if call_name(call) in _SWITCHES]
    gone = [parent for call in switches if isinstance(parent := source.parent(call), cst.Expr)]
    splices += remove_statements(source, gone) if gone else []
    splices += _flags(source)
    return without_from_import(source, splices, "checkpoint") if calls else splices


def _one_side(source: Source, call: cst.Call, plain: str) -> Splice | None:
    """Where the other side of an `if` (a statement or an expression) calls the function already: one for both."""
    either = source.parent(call)
    if isinstance(either, cst.IfExp) and not any(source.every(cst.Call, either.test)):
        other_side = either.orelse if either.body is call else either.body
        return replace(source, either, plain) if source.code(other_side) == plain else None
    statement = source.inside(call, cst.SimpleStatementLine)
    block = source.parent(statement) if statement is not None else None
    branch = source.parent(block) if block is not None else None
    if statement is None or not isinstance(branch, cst.If) or isinstance(source.parent(branch), cst.If):
        return None
    other = branch.orelse.body if isinstance(branch.orelse, cst.Else) else None
    if not isinstance(other, cst.IndentedBlock) or branch.body is not block or any(source.every(cst.Call, branch.test)):
        return None
    if len(other.body) != 1 or not isinstance(block, cst.IndentedBlock) or len(block.body) != 1:
        return None
    left = source.code(other.body[0])
    if source.code(statement).replace(source.code(call), plain) != left:
        return None
    return Splice(*source.span(branch), left)


def _flags(source: Source) -> list[Splice]:
    """`gradient_checkpointing=True` among the arguments of a trainer."""
    found = []
    for call in source.every(cst.Call) if "gradient_checkpointing" in source.words else ():
        given = argument(call, "gradient_checkpointing")
        if (
            given is not None
            and source.code(given.value) == "True"
            and call_name(call).endswith(("Arguments", "Config"))
        ):
            found.append(replace(source, given.value, "False"))
    return found


@dataclass(frozen=True)
class _Turn:
    """A block that is checkpointed in each turn of a loop over blocks."""

    loop: cst.For
    number: str | None
    """The variable that counts the turns; None where there is none."""


def _turn(source: Source, call: cst.Call) -> _Turn | None:
    loop = next(iter(loops_around(source, call)), None)
    block = call.args[0].value
    if (
        not isinstance(loop, cst.For)
        or not isinstance(block, cst.Name)
        or not isinstance(source.parent(call), cst.Assign)
    ):
        return None
    if isinstance(loop.target, cst.Name) and loop.target.value == block.value:
        return _Turn(loop, None)
    pair = numbered(loop)
    if pair is not None and isinstance(pair.number, cst.Name) and source.code(pair.value) == block.value:
        return _Turn(loop, pair.number.value)
    return None


def _some(source: Source, tests: Mapping[int, _Test | None]) -> list[Splice]:
    """The checkpoints on these lines under their tests."""
    splices: list[Splice] = []
    counted: dict[int, str] = {}
    for call in _checkpoints(source):
        turn = _turn(source, call)
        first, last = source.lines_of(call)
        at = next((line for line in tests if first <= line <= last), _ANYWHERE)
        if turn is None or at not in tests:
            continue
        test = tests[at]
        if test is None:
            splices.append(replace(source, call, _plain(source, call)))
            continue
        if not test("number"):  # all of them stay
            continue
        number = turn.number or counted.get(id(turn.loop))
        if number is None:
            number = counted[id(turn.loop)] = free_name(source, "number")
            start, _ = source.wide_span(turn.loop.target)
            splices.append(Splice(start, start, f"{number}, "))
            splices.append(replace(source, turn.loop.iter, f"enumerate({source.code(turn.loop.iter)})"))
        code = f"{source.code(call)} if {test(number)} else {_plain(source, call)}"
        splices.append(replace(source, call, code))
    return splices


def _recorded(text: str) -> Request:
    return example_request("over-checkpointing", text)


def _every_other(text: str) -> Request:
    return example_request("over-checkpointing", text, setting={"checkpointed": _HALF})


_HEAD = "import torch\nfrom torch import nn\n"
_IMPORT = "from torch.utils.checkpoint import checkpoint\n"
_FORWARD = "\n\nclass Net(nn.Module):\n    def forward(self, x):\n{}        return x\n"
_LOOP = "        for block in self.blocks:\n            x = {}\n"

FIXER = Fixer(
    name="checkpoint-fewer",
    rewrite=rewrite,
    gate=Gate.BITWISE,
    mechanism="compute+idle.dispatch+idle.launch",
    settings=settings,
    order=70,
    examples=(
        Example(
            _HEAD + _IMPORT + _FORWARD.format(_LOOP.format("checkpoint(block, x, use_reentrant=False)")),
            _HEAD + _FORWARD.format(_LOOP.format("block(x)")),
            _recorded,
        ),
        Example(
            _HEAD + _IMPORT + _FORWARD.format(_LOOP.format("checkpoint(block, x, use_reentrant=False)")),
            _HEAD
            + _IMPORT
            + _FORWARD.format(
                "        for number, block in enumerate(self.blocks):\n"
                "            x = checkpoint(block, x, use_reentrant=False) if number % 2 else block(x)\n"
            ),
            _every_other,
        ),
        Example(
            _HEAD
            + "import torch.utils.checkpoint as cp\n"
            + _FORWARD.format(
                "        if self.saving and self.training:\n"
                "            x = cp.checkpoint(self._inner, x, use_reentrant=True)\n"
                "        else:\n            x = self._inner(x)\n"
            ),
            _HEAD + "import torch.utils.checkpoint as cp\n" + _FORWARD.format("        x = self._inner(x)\n"),
            _recorded,
        ),
        *word_diffs(
            _recorded,
            "model = load()\nmodel.{-gradient_checkpointing_enable()\nmodel.-}train()\n",
            "unet = load()\nunet.{-enable_gradient_checkpointing()\nunet.-}train()\n",
            "args = TrainingArguments(output, gradient_checkpointing={-True-}{+False+})\n",
            "from torch.utils import checkpoint as cp\n"
            "x = {-cp.checkpoint(\n    -}block{-,-}{+(+}\n    x,  # tokens\n    None,  # mask"
            "{-\n    use_reentrant=False,-}\n)\n",
            _HEAD + _IMPORT + _FORWARD.format("        x = checkpoint(lambda y: self.a(self.b(y)), x)\n"),
            "def checkpoint(model, path):\n    pass\n\n\ncheckpoint(model, 'a.pt')\n",
        ),
    ),
)
