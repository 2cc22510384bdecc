"""Lets batches go to the device without the host waiting for them.

What it changes
    Passes `non_blocking=True` where a training step moves its batch to the device, and sees to it that the batch lies
    in pinned memory: from the loader (`pin_memory=True`), or, where the program makes its batches itself, by
    `pin_memory()`, once for data that is made before the loop, else for each batch.

Why it helps
    A plain copy to the device holds the host until the copy is over, and with it all work that the host would have
    launched. From ordinary memory it is slower besides. A copy from pinned memory that nobody waits for runs while the
    host goes on; work on the device that needs the batch comes behind it on the same stream.

Fix safety
    Bitwise: the device does the same work in the same order. torch keeps pinned memory from being used again until the
    copy is over. Left alone: tensors that are copied to the host, where reading too early would give wrong numbers;
    buffers of the program's own that it writes to again, since the copy could read the next batch; tensors whose
    origin is not clear; batches that are no plain tensors; single numbers. Pinned memory cannot be swapped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import libcst as cst

from diagnose.fixer import Answer, Example, Facts, Fixer, Gate, Request, Site, example_request, word_diffs
from diagnose.source.dataflow.flow import within
from diagnose.source.device.batch_classes import OwnMove, own_moves
from diagnose.source.device.host_overwrites import is_overwritten
from diagnose.source.device.transfer_size import is_constant, is_small, is_variable, is_whole_batch
from diagnose.source.device.transfers import Origin, Transfer, cuda_test, transfers
from diagnose.source.training.every_step import EveryStep
from diagnose.source.tree.arguments import set_keywords
from diagnose.source.tree.edits import Source, Splice, ensure_import, insert_after, insert_before, replace


@dataclass
class _Plan:
    edits: list[tuple[str, Sequence[Splice]]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    pinned: set[cst.CSTNode] = field(default_factory=set)
    """Statements that were seen to already."""


def rewrite(request: Request) -> Answer:
    """Make every copy of a batch to the device one that nobody waits for."""
    if request.facts.device_name is None:
        return None
    plan = _Plan()
    code = EveryStep(request.sources, request.finding.where)
    found = list(_of_tensors(transfers(code), own_moves(code.sources), plan))
    named = {(place.file, place.line) for place in request.finding.where}
    fed = [each for each in found if each.origin is Origin.LOADER and each.waits and not is_whole_batch(each)]
    if fed and _loader_is_pinned(request, plan):
        for each in fed:
            _do_not_wait(plan, each)
    for each in found:
        own = each.origin in (Origin.KEPT, Origin.MADE) and each.waits is not None
        if own and not is_constant(each) and not is_small(each) and not _is_of_samples(request, each):
            _pin(plan, each, [other for other in found if other is not each])
        elif each.origin is Origin.UNKNOWN and each.waits and (each.path, _line(each)) in named:
            plan.reasons.append(f"{_where(each)} copies a tensor whose origin is not clear: pin it and do not wait.")
    return request.answer(
        plan.edits, "copy batches to the device from pinned memory, without waiting", reasons=plan.reasons
    )


def _is_of_samples(request: Request, transfer: Transfer) -> bool:
    """Whether code that makes samples copies: in a worker process, a fork of this one, nothing can be pinned."""
    shared = (loader.shared for loader in request.loaders().loaders)
    return any(
        within(transfer.source, transfer.call, function)
        for each in shared
        if each is not None
        for function, path in each.code.sampling.items()
        if path == transfer.path
    )


def _of_tensors(found: Iterable[Transfer], moves: Sequence[OwnMove], plan: _Plan) -> Iterator[Transfer]:
    """The copies that are no business of a batch's own `to`: none within one, and none that may call one."""
    unable = [each for each in moves if not each.need_not_wait]
    for transfer in found:
        if any(
            within(transfer.source, transfer.call, each.method) for each in unable if each.source is transfer.source
        ):
            continue
        if unable and transfer.origin is Origin.LOADER and is_variable(transfer):
            plan.reasons.append(
                f"{_where(transfer)} may move a `{unable[0].name}`, which the program defines: give it a `pin_memory` "
                "method, which the loader calls, and let its `to` take non_blocking."
            )
            continue
        if transfer.origin is Origin.LOADER and is_overwritten(transfer):
            plan.reasons.append(
                f"{_where(transfer)} copies memory that the host writes to later, without a wait too early."
            )
            continue
        yield transfer


def _line(transfer: Transfer) -> int:
    return transfer.source.lines_of(transfer.call)[0]


def _where(transfer: Transfer) -> str:
    return f"{transfer.path}:{_line(transfer)}"


def _loader_is_pinned(request: Request, plan: _Plan) -> bool:
    """Whether the loaders hand out pinned batches, or will after edits that this adds."""
    loaders = request.loaders()
    if loaders.foreign and not loaders.loaders:
        return all(site.arguments.get("pin_memory") is True for site in loaders.foreign)
    for loader in loaders.loaders:
        if loader.options.value("pin_memory") is True:
            continue
        reason = loader.why_not_pinned() or loader.why_not_read("pin_memory")
        placed = loader.options.place("pin_memory", True)
        refusal = f"{loader.where} {reason}" if reason else placed.reason
        if refusal:
            plan.reasons.append(refusal)
            return False
        plan.edits += placed.edits.items()
    if not loaders.loaders:
        plan.reasons.append("Batches come from a loader that is not torch's: see that it hands them out pinned first.")
    return bool(loaders.loaders)


def _do_not_wait(plan: _Plan, transfer: Transfer) -> None:
    if transfer.waits:
        edits = set_keywords(transfer.source, transfer.call, {"non_blocking": "True"})
        plan.edits.append((transfer.path, edits))


def _pin(plan: _Plan, transfer: Transfer, others: Sequence[Transfer]) -> None:
    source = transfer.source
    if transfer.made_by is None:
        return
    statement = source.statement(transfer.made_by if transfer.origin is Origin.KEPT else transfer.call)
    if statement is None:
        return
    test = cuda_test(source, transfer, statement)
    if transfer.origin is Origin.KEPT:
        root = next(iter(source.every(cst.Name, transfer.moved)))
        names = [root.value]
        if test == "True":
            _inline(plan, transfer, transfer.made_by)
        elif statement not in plan.pinned:
            _guarded(plan, transfer, statement, names, test, after=True)
    elif test == "True":
        _inline(plan, transfer, transfer.moved)
    elif isinstance(transfer.moved, cst.Name):
        beside = [
            other for other in others if other.origin is Origin.MADE and source.statement(other.call) is statement
        ]
        names = [each.moved.value for each in [transfer, *beside] if isinstance(each.moved, cst.Name)]
        ordered = dict.fromkeys(each.value for each in source.every(cst.Name, statement) if each.value in names)
        if statement not in plan.pinned:
            _guarded(plan, transfer, statement, list(ordered), test, after=False)
    else:
        plan.reasons.append(f"{_where(transfer)} makes its batch in the line that copies it: give it a name first.")
        return
    plan.pinned.add(statement)
    _do_not_wait(plan, transfer)


def _inline(plan: _Plan, transfer: Transfer, expression: cst.BaseExpression) -> None:
    code = transfer.source.code(expression)
    if not code.endswith(".pin_memory()"):
        plan.edits.append((transfer.path, [replace(transfer.source, expression, f"{code}.pin_memory()")]))


def _guarded(
    plan: _Plan, transfer: Transfer, statement: cst.CSTNode, names: Sequence[str], test: str, *, after: bool
) -> None:
    """Pin variables where the device is one that needs it, beside what the program pins itself."""
    source = transfer.source
    line = f"{', '.join(names)} = {', '.join(f'{name}.pin_memory()' for name in names)}"
    there = _pinning(source, statement) if after else None
    if there is not None:
        plan.edits.append((transfer.path, [insert_before(source, there, [line])]))
        return
    if test.startswith("torch."):
        torch, imports = ensure_import(source, "torch")
        test = test.replace("torch", torch, 1)
        plan.edits.append((transfer.path, imports))
    lines = [f"if {test}:", source.indentation + line]
    insert = insert_after if after else insert_before
    plan.edits.append((transfer.path, [insert(source, statement, lines)]))


def _pinning(source: Source, statement: cst.CSTNode) -> cst.CSTNode | None:
    """The first statement of an `if` behind this one, in the same block, that pins other tensors already."""
    block = source.parent(statement)
    siblings = list(block.body) if isinstance(block, cst.IndentedBlock | cst.Module) else []
    for later in siblings[siblings.index(statement) + 1 :]:  # type: ignore[arg-type]
        body = later.body if isinstance(later, cst.If) and later.orelse is None else None
        if isinstance(body, cst.IndentedBlock) and all(".pin_memory()" in source.code(each) for each in body.body):
            return body.body[0]
    return None


def _recorded(text: str, cuda: bool = True) -> Request:
    lines = text.splitlines()
    sites = [
        Site("DataLoader", "train.py", number, arguments={"pin_memory": "pin_memory=True" in line})
        for number, line in enumerate(lines, 1)
        if "DataLoader(" in line
    ]
    named = [number for number, line in enumerate(lines, 1) if ".to(" in line or ".cuda(" in line]
    facts = Facts(device_name="NVIDIA H200" if cuda else None)
    return example_request("pageable-copies", text, sites=sites, facts=facts, lines=named)


_TOP = "import torch\nfrom torch.utils.data import DataLoader\n\n"
_DEVICE = 'device = torch.device("cuda" if torch.cuda.is_available() else "cpu")\n'
_OWN = "class Batch:\n    def to(self, device):\n        self.x = self.x.to(device)\n        return self\n\n"
_STREAM = (
    "def stream(batches):\n    kept = torch.empty(8, pin_memory=True)\n"
    "    for batch in batches:\n        yield kept.copy_(batch)\n\n"
)
_NOISE = (
    "class Noise(torch.nn.Module):\n    def forward(self, x):\n        c = torch.randn(x.shape)\n"
    "        return x + c.to(x.device)\n\n"
)
_PINNED_NOISE = _NOISE.replace("c.to(x.device)", "c.to(x.device, non_blocking=True)").replace(
    "        return", "        if torch.cuda.is_available():\n            c = c.pin_memory()\n        return"
)
_NOISY = (
    _NOISE + "class Data(torch.utils.data.Dataset):\n    def __init__(self):\n"
    "        self.noise = Noise()\n    def __getitem__(self, index):\n        return self.noise(load(index))\n\n"
)
_STEP = "    loss = model(x)\n    loss.backward()\n    optimizer.step()\n"


FIXER = Fixer(
    name="nonblocking-copies",
    rewrite=rewrite,
    gate=Gate.BITWISE,
    mechanism="exposed_copy+idle",
    order=30,
    after=("loader-workers", "loader-pin"),
    lines_of=("exposed-copies",),
    examples=(
        *word_diffs(
            _recorded,
            (
                "loader = DataLoader(data, pin_memory=True)\nfor x, y in loader:\n"
                "    x, y = x.to(device{+, non_blocking=True+}), y.cuda(0{+, non_blocking=True+})\n" + _STEP
            ),
            (
                "loader = DataLoader(data{+, pin_memory=True+})\nfor i, batch in enumerate(loader):\n"
                "    x = batch['x'].to(device, torch.bfloat16, non_blocking={-False-}{+True+})\n" + _STEP
            ),
            (
                _DEVICE + 'data = torch.rand(4, 8{+)\nif device.type == "cuda":\n    data = data.pin_memory(+})\n'
                "for step in range(9):\n    x = data[step % 4].to(device{+, non_blocking=True+})\n" + _STEP
            ),
            (
                "data = torch.rand(4, 8{+).pin_memory(+})\nfor step in range(9):\n"
                "    x = data[step % 4].cuda({+non_blocking=True+})\n" + _STEP
            ),
            (
                _DEVICE + "def get_batch():\n    x = torch.stack([torch.from_numpy(data[i]) for i in ix])\n"
                '    y = torch.from_numpy(labels[ix])\n    {+if device.type == "cuda":\n'
                "        x, y = x.pin_memory(), y.pin_memory()\n"
                "    +}x, y = x.to(device{+, non_blocking=True+}), y.to(device{+, non_blocking=True+})\n"
                "    return x, y\n\nwhile True:\n    x, y = get_batch()\n" + _STEP
            ),
            (
                "loader = DataLoader(data, pin_memory=True)\nfor x, y in loader:\n"
                "    x = x.reshape(-1, 784).to(device{+, non_blocking=True+})\n" + _STEP
            ),
            (
                "loader = DataLoader(data, pin_memory=True)\nfor part in loader:\n"
                "    a = part['a'].to(device{+, non_blocking=True+})\n"
                "    part['b'] = part['b'].to(device{+, non_blocking=True+})\n" + _STEP
            ),
            "for batch in DataLoader(data):\n    x = batch.to(device)\n    y = batch['y']\n" + _STEP,
            "buffer = torch.zeros(8)\nfor y in data:\n    buffer.copy_(y)\n    x = buffer.cuda()\n" + _STEP,
            "for x in DataLoader(data, pin_memory=True):\n    x = x.to(torch.bfloat16).to('cpu')\n" + _STEP,
            (
                "batches = iter(DataLoader(data{+, pin_memory=True+}))\nfor step in range(9):\n"
                "    x = next(batches).to(device{+, non_blocking=True+})\n" + _STEP
            ),
            "for x in DataLoader(data):\n    y = x.to(device)\n    x.add_(1)\n    x = y\n" + _STEP,
            "for x in DataLoader(data):\n    y = x.to(device)\n    x[0] = 1\n    x = y\n" + _STEP,
            "for x in DataLoader(data):\n    y = x.view(8, -1).to(device)\n    x.add_(1)\n    x = y\n" + _STEP,
            _STREAM + "for x in stream(DataLoader(data)):\n    x = x.to(device)\n" + _STEP,
            _OWN + "for x in DataLoader(data):\n    x = x.to(device)\n" + _STEP,
            "for x in stream():\n    x = x.to(device)\n" + _STEP,
            (
                "def update(average, model):\n    for ours, its in zip(average, model.state_dict().values()):\n"
                "        its = its.to(device)\n        ours.copy_(its)\n\n"
                "for x in DataLoader(data, pin_memory=True):\n    update(average, model)\n" + _STEP
            ),
            (
                "def placed(part):\n    part = part.cuda()\n    part.to(memory_format=torch.channels_last)\n"
                "    return part\n\nfor x in DataLoader(data, pin_memory=True):\n    placed(x)\n" + _STEP
            ),
            _NOISY + "for x in DataLoader(Data(), num_workers=4):\n" + _STEP,
            top=_TOP,
        ),
        Example(
            before=_TOP + _NOISE + "noise = Noise()\nfor x in batches:\n    x = noise(x)\n" + _STEP,
            after=_TOP + _PINNED_NOISE + "noise = Noise()\nfor x in batches:\n    x = noise(x)\n" + _STEP,
            request=_recorded,
        ),
        *word_diffs(
            _recorded,
            "for x in DataLoader(data):\n    w = torch.tensor([1.0, 2.0]).cuda()\n" + _STEP,
            "for i in range(9):\n    share = torch.tensor(i / 9).to(device)\n" + _STEP,
            "total = 0\nfor x in data:\n    total += len(x)\n    seen = torch.tensor(total).cuda()\n" + _STEP,
            "for x in data:\n    last = loss.item()\n    shown = torch.tensor(last).cuda()\n" + _STEP,
            "for i, x in enumerate(data):\n    at = torch.tensor([i, len(data)]).cuda()\n" + _STEP,
            "x = torch.rand(9).cuda()\nfor i in range(9):\n" + _STEP,
            (
                "for i in range(9):\n    x = torch.from_numpy(data[i])\n    if device_type == 'cuda':\n"
                "        x = x.pin_memory().to(device, non_blocking=True)\n    else:\n        x = x.to(device)\n"
                + _STEP
            ),
            top=_TOP,
        ),
    ),
)
