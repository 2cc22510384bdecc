"""Updates a moving average of weights in a few launches.

What it changes
    A loop that goes through two models and mixes each weight of one into the other (`e = decay * e + (1 - decay) * p`,
    in one of its many spellings) gives way to one `torch._foreach_lerp_` over both lists, as torch's own
    `torch.optim.swa_utils` does it. Where a dictionary keeps the averages and gets a new tensor for each, it gets those
    of one `torch._foreach_lerp`.

Why it helps
    Two or three launches for each of hundreds of weights cost the host milliseconds in every step, and the device has
    nothing to do meanwhile. Lists go through in a few launches.

Fix safety
    Rounding: the same mean, in another order of operations. Left alone: loops that do more (conditions, buffers, whole
    numbers), factors that do not sum to one, names of the loop that are read behind it, and programs that let tensors
    share memory (`a.data = b.data`, `kept = [p.data for p in …]`) where each turn puts a new tensor in the place of the
    average. Weights of another number format than their average's do
    not go through lists: the trial then says so.
"""

from __future__ import annotations

import re

import libcst as cst

from diagnose.fixer import Answer, Example, Fixer, Gate, Request, example_request
from diagnose.source.dataflow.flow import is_without_gradients
from diagnose.source.optimizers.average_dictionaries import KeptAverage, kept_averages, may_be_kept_average
from diagnose.source.optimizers.moving_averages import UPDATES, MovingAverage, may_be_moving_average, moving_averages
from diagnose.source.tree.edits import Source, Splice, call_name, ensure_import, free_name
from diagnose.source.tree.memo import files_with
from diagnose.source.tree.text_lines import any_matches

_PART = r"\w[\w.\[\]\"']*"
_SHARES = re.compile(
    rf"\.data\s*=\s*{_PART}[ \t]*(?:#.*)?\r?$|"  # model.w.data = ema.w
    rf"=\s*{_PART}\.(?:data|detach\(\))[ \t]*(?:#.*)?\r?$|"  # kept[name] = w.data
    rf"\bappend\({_PART}\.(?:data|detach\(\))\)|"
    r"\.(?:data|detach\(\))\s+for\b|\bassign\s*=\s*True",  # [w.data for w in weights]
    re.MULTILINE,
)
"""Where two models, or a model and what is kept of it, may come to hold one memory."""
_PUTS = re.compile(r"\.\s*data\s*=")
_STATE = frozenset({"items", "is_floating_point"})
_FORMATS = frozenset({"double", "half", "bfloat16"})
_DTYPES = frozenset({"torch.float64", "torch.double", "torch.float16", "torch.half", "torch.bfloat16"})
_Replaced = tuple[cst.For, list[str]]
"""A loop, and the lines that take its place."""


def rewrite(request: Request) -> Answer:
    """Replace every such loop."""
    shares = any_matches(_SHARES, request.sources.values())
    edits: list[tuple[str, list[Splice]]] = []
    for path, source in files_with(
        request.sources, where=lambda text: "for " in text and ("mul" in text or "lerp" in text or "*" in text)
    ):
        if not _may_average(source):
            continue
        torch, imports = ensure_import(source, "torch")
        averages = [each for each in moving_averages(source) if not (each.anew and shares)]
        averages = [each for each in averages if not _has_other_format(source, each.averages)]
        found = [(average.loop, [_over_lists(average, torch)]) for average in averages]
        dictionaries = [each for each in kept_averages(source) if not _has_other_format(source, each.kept)]
        found += [(kept.loop, _over_dictionary(source, kept, torch)) for kept in dictionaries]
        splices = [_in_place_of(source, row, torch) for row in _rows(source, found)]
        edits.append((path, [*imports, *splices] if splices else []))
    return request.answer(edits, "update the average of the weights in a few launches")


def _may_average(source: Source) -> bool:
    """Whether a file has the words of any such loop: it writes into tensors, or puts others there."""
    written = not source.words.isdisjoint(UPDATES) or _PUTS.search(source.text) is not None
    if not written and "named_parameters" not in source.words and not source.words >= _STATE:
        return False
    return any(may_be_moving_average(loop) or may_be_kept_average(loop) for loop in source.outline.loops)


def _has_other_format(source: Source, averages: str) -> bool:
    """Whether the averages are seen to be turned into another format than the weights: lists of two have no average."""
    named = set(re.findall(r"\w+", averages)) - {"list", "parameters", "_", "in", "for", "self"}
    for call in source.every(cst.Call):
        dtype = any(source.names(arg.value) & _DTYPES for arg in call.args)
        if call_name(call) not in _FORMATS and not dtype:
            continue
        assign = source.inside(call, cst.Assign)
        made = [each.target for each in assign.targets] if assign is not None else [call.func]
        if any(name.value in named for each in made for name in source.every(cst.Name, each)):
            return True
    return False


def _over_lists(average: MovingAverage, torch: str) -> str:
    return f"{torch}._foreach_lerp_({average.averages}, {average.values}, {average.weight})"


def _over_dictionary(source: Source, average: KeptAverage, torch: str) -> list[str]:
    """New tensors for the dictionary, as the loop made them: others may hold the old ones."""
    learned, averages = free_name(source, "learned"), free_name(source, "averages")
    key, kept = average.key, average.kept
    chosen = f" if {average.condition}" if average.condition is not None else ""
    return [
        f"{learned} = {{{key}: {average.value} for {key}, {average.value} in {average.over}{chosen}}}",
        f"{averages} = [{kept}[{key}] for {key} in {learned}]",
        f"{averages} = {torch}._foreach_lerp({averages}, list({learned}.values()), {average.weight})",
        f"{kept}.update(zip({learned}, {averages}))",
    ]


def _rows(source: Source, found: list[_Replaced]) -> list[list[_Replaced]]:
    """Loops that follow each other directly, together: one block without gradients does for them."""
    rows: list[list[_Replaced]] = []
    for each in sorted(found, key=lambda one: source.span(one[0])[0]):
        before = rows[-1][-1][0] if rows else None
        between = source.text[source.span(before)[1] : source.span(each[0])[0]] if before is not None else "-"
        apart = re.sub(r"#.*", "", between).strip()  # comments stay with what they head
        if apart or source.indent(before or each[0]) != source.indent(each[0]):
            rows.append([])
        rows[-1].append(each)
    return rows


def _in_place_of(source: Source, row: list[_Replaced], torch: str) -> Splice:
    """Statements instead of loops, with their comments, where no gradients are recorded."""
    start, end = source.span(row[0][0])[0], source.span(row[-1][0])[1]
    end = start + len(source.text[start:end].rstrip())
    lines: list[str] = []
    at = start
    for loop, code in row:
        until = source.span(loop)[1]
        said = (line.strip() for line in source.text[at:until].splitlines())
        lines += [line for line in said if line.startswith("#")] + code
        at = until
    if not is_without_gradients(source, row[0][0]):
        lines = [f"with {torch}.no_grad():", *(source.indentation + line for line in lines)]
    return Splice(start, end, (source.newline + source.indent(row[0][0])).join(lines))


def _recorded(text: str) -> Request:
    return example_request("launch-bound", text)


_TOP = "import torch\n\n\n"
_ZIP = "    for {0} in zip(ema.parameters(), model.parameters()):\n"
_DEF = "def update(ema, model, decay):\n"
_AFTER = "torch._foreach_lerp_(list(ema.parameters()), list(model.parameters()), 1 - decay)\n"


def _updated(body: str, after: str = _AFTER, head: str = _TOP + "@torch.no_grad()\n" + _DEF) -> Example:
    return Example(head + body, head + f"    {after}", _recorded)


def _left_alone(body: str, more: str = "") -> Example:
    return Example(_TOP + _DEF + body + more, None, _recorded)


_EP = _ZIP.format("e, p")
_UPDATED = "        e.data.mul_(decay).add_(p.data, alpha=1 - decay)\n"

FIXER = Fixer(
    name="foreach-average",
    rewrite=rewrite,
    gate=Gate.ROUNDING,
    mechanism="compute+idle.python+idle.dispatch+idle.launch",
    order=50,
    examples=(
        _updated(
            _EP + _UPDATED + "    # and the head\n    for e, p in zip(a.parameters(), b.parameters()):\n" + _UPDATED,
            f"with torch.no_grad():\n        {_AFTER}        # and the head\n"
            "        torch._foreach_lerp_(list(a.parameters()), list(b.parameters()), 1 - decay)\n",
            _TOP + _DEF,
        ),
        _updated(_EP + "        e.mul_(decay).add_(p, alpha=1 - decay)\n"),
        _updated(_EP + "        e.data.mul_(decay)\n        e.data.add_((1 - decay) * p.detach().data)\n"),
        _updated(_EP + "        e.copy_(e * decay + p * (1 - decay))\n"),
        _updated(_EP + "        e.lerp_(p, 1 - decay)\n"),
        _updated(
            _EP + "        e.data = e.data * decay + p.data * (1. - decay)\n",
            "with torch.no_grad():\n        " + _AFTER.replace("1 - decay", "1. - decay"),
            _TOP + _DEF,
        ),
        _updated(
            _ZIP.format("p_now, p_mean").replace("ema.parameters(), model", "model.parameters(), ema")
            + "        old, new = p_mean.data, p_now.data\n"
            "        p_mean.data = old * self.beta + (1 - self.beta) * new\n",
            _AFTER.replace("decay", "self.beta"),
        ),
        _updated(
            "    averaged = dict(ema.named_parameters())\n    for name, p in model.named_parameters():\n"
            "        # frozen ones too\n        averaged[name].mul_(decay).add_(p.data, alpha=1 - decay)\n",
            "averaged = dict(ema.named_parameters())\n    # frozen ones too\n"
            "    torch._foreach_lerp_([averaged[name] for name, _ in model.named_parameters()], "
            "list(model.parameters()), 1 - decay)\n",
        ),
        _updated(
            "    for n, p in model.named_parameters():\n        if p.requires_grad:\n"
            "            new = (1.0 - decay) * p.data + decay * kept[n]\n            kept[n] = new.clone()\n",
            "learned = {n: p for n, p in model.named_parameters() if p.requires_grad}\n"
            "    averages = [kept[n] for n in learned]\n"
            "    averages = torch._foreach_lerp(averages, list(learned.values()), 1.0 - decay)\n"
            "    kept.update(zip(learned, averages))\n",
            _TOP + "kept = {n: p.clone() for n, p in model.named_parameters()}\n\n\n@torch.no_grad()\n" + _DEF,
        ),
        _left_alone("    for n, p in model.named_parameters():\n        ema[n] = decay * ema[n] + (1 - decay) * p\n"),
        _left_alone(_EP + "        if p.requires_grad:\n            e.mul_(decay).add_(p, alpha=1 - decay)\n"),
        _left_alone(_EP + "        e.mul_(decay).add_(p, alpha=decay)\n"),
        _left_alone(_EP.replace("parameters()", "state_dict().values()") + "        e.lerp_(p, 1 - decay)\n"),
        _left_alone(_EP + "        e.mul_(1 - slow - fast).add_(p, alpha=slow - fast)\n"),
        _left_alone(_EP + "        e.mul_(1 - p.norm()).add_(p, alpha=p.norm())\n"),
        _left_alone(_EP + "        p.mul_(decay).add_(e.grad, alpha=1 - decay)\n"),
        _left_alone(
            _EP + "        e.data = e.data * decay + p.data * (1 - decay)\n", "\n\nema.w.data = model.w.data\n"
        ),
        _left_alone(_EP + "        e.mul_(decay).add_(p, alpha=1 - decay)\n        print(e.norm())\n"),
        _left_alone(
            _EP + "        e.mul_(decay).add_(p, alpha=1 - decay)\n", "\n\nema = copy.deepcopy(net).double()\n"
        ),
    ),
)
