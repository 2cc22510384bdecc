"""Lets the optimizer do its step in a few fused kernels.

What it changes
    Passes `fused=True` where the program builds its Adam, AdamW, SGD or Adagrad. `foreach` gives way, since the two
    exclude each other.

Why it helps
    Without it, torch updates parameters with a dozen elementwise operations for each tensor, or for each group of
    tensors. Every one of them is launched by the host and moves its operands through memory again. The fused form
    reads parameter, gradient and state once, writes them once, and does so in a few launches for the whole model.
    It exists for CUDA and, since torch 2.4, for the CPU.

Fix safety
    Rounding. The same formulas, evaluated in another order inside one kernel. Left alone: sparse gradients and
    `differentiable=True`, which the fused form does not take; optimizers that have no fused form; classes of the
    program's own. A checkpoint of the optimizer's state loads in either form.
"""

from __future__ import annotations

import libcst as cst

from diagnose.fixer import (
    Advice,
    Answer,
    Edits,
    Example,
    Fixer,
    Gate,
    Request,
    Site,
    Source,
    Splice,
    argument,
    call_at,
    example_request,
    has_star,
    parse,
    set_keywords,
    splice,
)

_FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
_FOREACH_POSITION = {"Adagrad": 6}


def rewrite(request: Request) -> Answer:
    """Set `fused=True` at every recorded optimizer of the user's that has that form."""
    by_file: dict[str, list[Splice]] = {}
    reasons: list[str] = []
    sites = [site for site in request.sites if site.kind == "optimizer"]
    for site in sites:
        found = _edit(request, site)
        if isinstance(found, str):
            reasons.append(found)
        elif found:
            by_file[site.file] = by_file.get(site.file, []) + found
    if by_file:
        files = {path: splice(request.sources[path], splices) for path, splices in by_file.items()}
        return Edits(files, "use the fused form of the optimizer")
    return Advice(" ".join(dict.fromkeys(reasons))) if reasons else None


def _edit(request: Request, site: Site) -> list[Splice] | str:
    """The edits of one site, or why there are none; an empty list where it is fused already."""
    where = f"{site.file}:{site.line}"
    name = str(site.arguments.get("name", ""))
    if site.arguments.get("fused") is True:
        return []
    source = parse(request.sources.get(site.file, ""))
    call = call_at(source, site.line, {*_FUSED, name} - {""}) if source is not None and site.owned else None
    if source is None or call is None:
        return f"{where} is not a line that we can edit: pass fused=True to {name or 'the optimizer'} there."
    if not any(found.startswith("torch.optim.") for found in source.names(call.func)):
        return (
            f"{where} builds {name or 'an optimizer'}, which is not torch's own: torch.optim.AdamW(…, fused=True) is."
        )
    kind = next(found.rpartition(".")[2] for found in source.names(call.func) if found.startswith("torch.optim."))
    if kind not in _FUSED:
        return f"{where}: {kind} has no fused form."
    return _set_fused(request, source, call, kind, where)


def _set_fused(request: Request, source: Source, call: cst.Call, kind: str, where: str) -> list[Splice] | str:
    if has_star(call):
        return f"{where} takes its arguments from elsewhere: put fused=True where they are made."
    if any("sparse=True" in text for text in request.sources.values()):
        return f"{where}: the fused form does not take sparse gradients, and the program has a sparse embedding."
    for keyword, literal in (("differentiable", "False"), ("foreach", None), ("fused", "False")):
        given = argument(call, keyword, _FOREACH_POSITION.get(kind) if keyword == "foreach" else None)
        code = source.code(given.value) if given is not None else None
        if keyword == "fused" and code == "True":
            return []
        if code is not None and code not in ({literal} if literal else {"True", "False", "None"}) | {"None"}:
            return f"{where} passes {keyword}={code}: decide there whether fused=True may take its place."
    position = _FOREACH_POSITION.get(kind)
    if position is not None and argument(call, "foreach", position) is not argument(call, "foreach"):
        return f"{where} passes foreach by its position: name it, then fused=True can take its place."
    return set_keywords(source, call, {"fused": "True"}, remove=["foreach"])


def _recorded(text: str) -> Request:
    line = next(number for number, line in enumerate(text.splitlines(), 1) if "model.parameters()" in line)
    return example_request("slow-optimizer", text, sites=[Site("optimizer", "train.py", line)])


_IMPORT = "import torch\n"


def _left_alone(text: str) -> Example:
    return Example(text, None, _recorded)


FIXER = Fixer(
    name="fused-optimizer",
    rewrite=rewrite,
    gate=Gate.ROUNDING,
    mechanism="compute+idle.dispatch+idle.launch",
    order=50,
    examples=(
        Example(
            before=_IMPORT + "opt = torch.optim.AdamW(model.parameters(), lr=3e-4)  # decays\n",
            after=_IMPORT + "opt = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)  # decays\n",
            request=_recorded,
        ),
        Example(
            before=_IMPORT + "opt = torch.optim.SGD(model.parameters(), foreach=False, lr=0.1)\n",
            after=_IMPORT + "opt = torch.optim.SGD(model.parameters(), fused=True, lr=0.1)\n",
            request=_recorded,
        ),
        Example(
            before="from torch.optim import Adam as A\nopt = A(\n    (model.parameters()),\n    lr=1e-3,  # tuned\n)\n",
            after="from torch.optim import Adam as A\nopt = A(\n    (model.parameters()),\n    lr=1e-3,  # tuned\n"
            "    fused=True,\n)\n",
            request=_recorded,
        ),
        Example(
            before=_IMPORT + "opt = torch.optim.Adam(model.parameters(), fused=False)\n",
            after=_IMPORT + "opt = torch.optim.Adam(model.parameters(), fused=True)\n",
            request=_recorded,
        ),
        Example(
            before=_IMPORT + "opt = torch.optim.Adam(p for p in model.parameters() if p.requires_grad)\n",
            after=_IMPORT + "opt = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), fused=True)\n",
            request=_recorded,
        ),
        _left_alone(_IMPORT + "opt = torch.optim.Adam(model.parameters(), fused=True)\n"),
        _left_alone(_IMPORT + "opt = torch.optim.Adam(model.parameters(), differentiable=True)\n"),
        _left_alone(_IMPORT + "opt = torch.optim.Adam(model.parameters(), foreach=choose())\n"),
        _left_alone(_IMPORT + "opt = torch.optim.Adam(model.parameters(), **extra)\n"),
        _left_alone(_IMPORT + "opt = torch.optim.LBFGS(model.parameters())\n"),
        _left_alone("from transformers import AdamW\nopt = AdamW(model.parameters())\n"),
        _left_alone("class Adam:\n    pass\n\nopt = Adam(model.parameters())\n"),
        _left_alone(
            _IMPORT + "table = torch.nn.Embedding(9, 9, sparse=True)\nopt = torch.optim.SGD(model.parameters())\n"
        ),
    ),
)
