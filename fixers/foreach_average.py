"""Updates a moving average of weights in a few launches.

What it changes
    A loop that goes through two models and mixes each weight of one into the other (`e = decay * e + (1 - decay) * p`,
    in one of its many spellings) gives way to one `torch._foreach_lerp_` over both lists, as torch's own
    `torch.optim.swa_utils` does it.

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

from diagnose.fixer import (
    Answer,
    Edits,
    Example,
    Fixer,
    Gate,
    MovingAverage,
    Request,
    Source,
    Splice,
    ensure_import,
    example_request,
    moving_averages,
    parse,
)

_PART = r"\w[\w.\[\]\"']*"
_SHARES = re.compile(
    rf"\.data\s*=\s*{_PART}[ \t]*(?:#.*)?\r?$|"  # model.w.data = ema.w
    rf"=\s*{_PART}\.(?:data|detach\(\))[ \t]*(?:#.*)?\r?$|"  # kept[name] = w.data
    rf"\bappend\({_PART}\.(?:data|detach\(\))\)|"
    r"\.(?:data|detach\(\))\s+for\b|\bassign\s*=\s*True",  # [w.data for w in weights]
    re.MULTILINE,
)
"""Where two models, or a model and what is kept of it, may come to hold one memory."""


def rewrite(request: Request) -> Answer:
    """Replace every such loop."""
    shares = any(map(_SHARES.search, request.sources.values()))
    edits: list[tuple[str, list[Splice]]] = []
    for path, text in request.sources.items():
        source = parse(text) if "for " in text and ("mul" in text or "lerp" in text or "*" in text) else None
        for average in moving_averages(source) if source is not None else ():
            if source is not None and not (average.anew and shares):
                edits.append((path, _edit(source, average)))
    files = request.edited(edits)
    return Edits(files, "update the average of the weights in a few launches") if files else None


def _edit(source: Source, average: MovingAverage) -> list[Splice]:
    torch, imports = ensure_import(source, "torch")
    call = f"{torch}._foreach_lerp_({average.averages}, {average.values}, {average.weight})"
    start, end = source.span(average.loop)
    end = start + len(source.text[start:end].rstrip())
    said = [line.strip() for line in source.text[start:end].splitlines() if line.strip().startswith("#")]
    lines = [*said, call]
    if not _without_gradients(source, average.loop):
        lines = [f"with {torch}.no_grad():", *(source.module.default_indent + line for line in lines)]
    return [*imports, Splice(start, end, (source.newline + source.indent(average.loop)).join(lines))]


def _without_gradients(source: Source, node: cst.CSTNode) -> bool:
    """Whether autograd is off there, as the text shows."""
    for above in source.ancestors(node):
        if isinstance(above, cst.With) and any("no_grad" in source.code(item.item) for item in above.items):
            return True
        if isinstance(above, cst.FunctionDef):
            return any("no_grad" in source.code(each.decorator) for each in above.decorators)
    return False


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

FIXER = Fixer(
    name="foreach-average",
    rewrite=rewrite,
    gate=Gate.ROUNDING,
    mechanism="compute+idle.python+idle.dispatch+idle.launch",
    order=50,
    examples=(
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
    ),
)
