"""Lets DistributedDataParallel reduce gradients while the backward pass goes on.

What it changes
    Takes out the loop that reduces the gradients of all parameters by hand after the backward pass (or the call of the
    function that does nothing else), and wraps the model once it is built. Where the program needs the model itself,
    for a checkpoint, it gets it from the wrapper, as `model.module`.

Why it helps
    By hand, one collective a parameter starts when nothing is left to hide it. DistributedDataParallel puts gradients
    into buckets and reduces each once it is full, beside the rest of the backward pass.

Fix safety
    Rounding: gradients are divided by the number of ranks before the sum, not after it. The weights of the first rank
    are sent to all others once, which changes nothing where a seed or a broadcast makes all ranks begin alike; where
    neither is seen, the program is left alone. Buffers stay each rank's own, as they were. Where the loop asks for
    gradients that are not there, the wrapper looks for parameters without one, unless it is seen that there are none.
    What one rank runs alone gets the model itself, so that no rank waits for another; so does all that names, copies,
    prints or indexes it, and a use that is not understood leaves the program alone. Left to people, with the lines to
    write: `nn.DataParallel`, which needs another way to start the program; sums that are not divided, or are of some of
    the ranks alone; gradients that are clipped or looked at before they are reduced, or accumulated over several
    backward passes.
"""

from __future__ import annotations

import re

import libcst as cst

from diagnose.fixer import Advice, Answer, Edits, Example, Fixer, Gate, Request, example_request
from diagnose.source.dataflow.flow import loops_around, scope_of, within
from diagnose.source.dataflow.ranks import is_same_on_all
from diagnose.source.distributed.data_parallel import data_parallel, option_of_buffers
from diagnose.source.distributed.parameter_loops import ParameterLoop, parameter_loops
from diagnose.source.models.construction_end import after_build
from diagnose.source.models.model_construction import Built, built_model
from diagnose.source.models.model_uses import asked_elsewhere, needs_model, uses_of_model
from diagnose.source.optimizers.gradient_coverage import idle_gradients
from diagnose.source.rewrite.removal import remove_statements
from diagnose.source.training.training_loop import TrainingStep, training_steps
from diagnose.source.tree.edits import Source, Splice, call_name, ensure_import
from diagnose.source.tree.memo import parse_all

Statement = cst.BaseSmallStatement | cst.BaseCompoundStatement
_REDUCES = re.compile(r"\ball_reduce(?:_coalesced)?\(")
_SEEDS = frozenset({"torch.manual_seed", "torch.random.manual_seed", "torch.cuda.manual_seed_all"})
_SHARDS = re.compile(r"\bfully_shard\(|\bFullyShardedDataParallel\b|\bFSDP\(|\bdeepspeed\b|\breduce_scatter")
_FOR_ONE_PROCESS = """{line}: `nn.DataParallel` drives all devices from one process. With a process for each instead:
  1. before the model is built: `rank = int(os.environ["LOCAL_RANK"]); torch.cuda.set_device(rank); \
torch.distributed.init_process_group("nccl")`
  2. in place of this line: `{name} = nn.parallel.DistributedDataParallel({model}.to(rank), device_ids=[rank])`
  3. each process takes its part of the batch: `sampler=torch.utils.data.DistributedSampler(dataset)` in the loader, \
and the batch size divided by the number of devices
  4. print and save in rank 0 only, and save `{name}.module.state_dict()`
  5. start it with `torchrun --nproc-per-node {devices} {script}`
No edit is made: it changes how the program is started."""


def rewrite(request: Request) -> Answer:
    """Wrap the model whose gradients are reduced by hand."""
    replicated = _data_parallel_module(request)
    if replicated is not None:
        return replicated
    loops = [loop for loop in parameter_loops(request.sources) if loop.of == "grad"]
    if any(one.is_wrapper for one in data_parallel(request.sources, request.sites)):
        return None
    if not loops:
        return _written_otherwise(request)
    for step in training_steps(request.sources, request.sites):
        for loop in loops:
            gone = _reduces(step, loop)
            if gone:
                return _wrapped(request, step, loop, gone)
    return Advice(f"{loops[0].line} reduces gradients one by one: DistributedDataParallel does so beside the backward.")


def _written_otherwise(request: Request) -> Advice | None:
    """Return what to write where gradients are reduced by hand in another way: flattened into one tensor, or
    unawaited."""
    if request.finding.rule != "unoverlapped-gradients":
        return None
    for path, text in request.sources.items():
        reduces = _REDUCES.search(text)
        if reduces is not None and ".grad" in text and not _SHARDS.search(text):
            line = text[: reduces.start()].count("\n") + 1
            return Advice(
                f"{path}:{line} reduces gradients by hand, after the backward pass. DistributedDataParallel does so "
                "beside it: `model = torch.nn.parallel.DistributedDataParallel(model)` in its place. No edit is made: "
                "it is no loop that reduces one gradient after the other, divides it and does nothing else."
            )
    return None


def _reduces(step: TrainingStep, loop: ParameterLoop) -> list[Statement]:
    """The statements of a step's turn that reduce its gradients, with the function that they call."""
    if step.path != loop.path or step.loop is None:
        return []
    source = loop.source
    around = loops_around(source, step.backward)
    if loop.function is None:
        return [loop.loop] if any(within(source, loop.loop, each.body) for each in around) else []
    gone: list[Statement] = []
    for call in loop.calls:
        statement = source.parent(call)
        if isinstance(statement, cst.Expr) and any(within(source, call, each.body) for each in around):
            gone.append(statement)
    if gone and len(gone) == len(loop.calls) and source.text.count(loop.function.name.value) == len(gone) + 1:
        gone.append(loop.function)
    return gone


def _wrapped(
    request: Request,
    step: TrainingStep,
    loop: ParameterLoop,
    gone: list[Statement],
) -> Answer:
    built = built_model(step, request.sources)
    reason = _why_not(request, step, loop, built, gone)
    if reason is not None or built is None:
        return Advice(
            f"{loop.line} reduces gradients one by one after the backward pass. DistributedDataParallel does so beside "
            f"it: `model = torch.nn.parallel.DistributedDataParallel(model)` in its place. No edit is made: {reason}."
        )
    torch, imports = ensure_import(built.source, "torch")
    # The program lets each rank keep its buffers: sent in forward passes, they would make ranks wait for each other.
    options = f", {option_of_buffers(request.facts)}=False"
    options += ", find_unused_parameters=True" if _may_lack(request, loop) else ""
    wrapper = f"{torch}.nn.parallel.DistributedDataParallel({built.name}{options})"
    at = after_build(built, [f"{built.name} = {wrapper}"], filled=True)
    own = [Splice(end, end, ".module") for end in needs_model(request.sources, built, at.start, gone, step)]
    edits = [
        (loop.path, remove_statements(loop.source, gone, about=r"gradients?\b|average|all.?reduce")),
        (built.path, [*imports, at, *own]),
    ]
    return Edits(request.edited(edits), "reduce gradients while the backward pass goes on")


def _why_not(
    request: Request,
    step: TrainingStep,
    loop: ParameterLoop,
    built: Built | None,
    gone: list[Statement],
) -> str | None:
    if not loop.averages:
        return "it adds gradients up without dividing by the number of ranks, which the wrapper does"
    if loop.group is not None:
        return f"it reduces over `{loop.group}`, which the wrapper must be told, as `process_group`"
    if built is None:
        return "the line that builds the model was not found"
    source = loop.source
    if any(step.model != _reduced(loop, each) for each in gone if not isinstance(each, cst.FunctionDef)):
        return f"those are not the gradients of `{step.model}` alone"
    inner = loops_around(source, step.backward)[0]
    reducing = next(each for each in gone if not isinstance(each, cst.FunctionDef))
    if not within(source, reducing, inner.body):
        return "gradients of several backward passes are reduced at once: `no_sync` is needed for all but the last"
    if _is_conditional(source, reducing):
        return "it does so only under a condition"
    position = after_build(built, ["pass"], filled=True).start
    if not _group_exists(built, position):
        return "the process group is made after the model, elsewhere, or only under a condition"
    if any(
        within(source, node, step.turn) and _is_before(step, node)
        for node in uses_of_model(source, step.scope, step.model or "")
    ):
        return "the loss is computed by more of the model than its forward pass"
    if step.hands_loss_on:
        return "a function makes the backward pass, and may look at the gradients before they are reduced"
    if _between(step, reducing):
        return "the program looks at the gradients, or clips them, before it reduces them"
    where = asked_elsewhere(request.sources, built, step, position)
    if where is not None:
        return f"{where} uses the model in a way that the wrapper does not have"
    if _may_lack(request, loop) and len(step.forward) > 1:
        return "some parameters may get no gradient, and the model is called several times for one backward pass"
    return _may_begin_otherwise(request, built, position)


def _may_lack(request: Request, loop: ParameterLoop) -> bool:
    """Whether the loop asks for gradients that are not there, and nothing shows that there always are all."""
    asks = any(loop.source.every(cst.If, loop.loop))
    return asks and idle_gradients(request.sources, also_sgd=True) is not None


def _may_begin_otherwise(request: Request, built: Built, position: int) -> str | None:
    """Why ranks may begin with other weights than the first one, which the wrapper sends to all."""
    if any(loop.collective == "broadcast" for loop in parameter_loops(request.sources)):
        return None
    seeds: list[tuple[bool, bool]] = []  # whether it stands before the model in its scope, and may hang on the rank
    parsed = {**parse_all(request.sources), built.path: built.source}
    for source in parsed.values():
        for call in source.every(cst.Call):
            beside = source is built.source and scope_of(source, call) is built.scope
            later = beside and source.span(call)[0] > position
            if source.names(call.func) & _SEEDS and not later:
                given = call.args[0].value if call.args else None
                seeds.append((beside, not is_same_on_all(parsed, source, given)))
    decisive = [ranked for beside, ranked in seeds if beside][-1:] or [ranked for _, ranked in seeds]
    if not decisive:
        return "nothing is seen to make all ranks begin with the same weights"
    return "ranks may be seeded differently, and begin with other weights" if any(decisive) else None


def _reduced(loop: ParameterLoop, statement: Statement) -> str:
    """Return what a statement names the model whose gradients it reduces."""
    call = statement.value if isinstance(statement, cst.Expr) else None
    return loop.model_in(call) if isinstance(call, cst.Call) else loop.model


def _is_conditional(source: Source, node: cst.CSTNode) -> bool:
    """Whether a statement of its function runs only sometimes."""
    scope = scope_of(source, node)
    branches = [above for above in source.ancestors(node) if isinstance(above, cst.If) and within(source, above, scope)]
    return any("__name__" not in source.code(branch.test) for branch in branches)


def _group_exists(built: Built, position: int) -> bool:
    """Whether the process group is there before a position of the scope in which the model is built.

    What that scope does not make itself, it was called with: no gradient could be reduced otherwise.
    """
    source = built.source
    makes = [call for call in source.every(cst.Call) if call_name(call) == "init_process_group"]
    if any(_is_conditional(source, call) for call in makes):
        return False
    makers = {scope.name.value for call in makes if isinstance(scope := scope_of(source, call), cst.FunctionDef)}
    here = [
        source.span(call)[0] < position
        for call in source.every(cst.Call)
        if call_name(call) in makers | {"init_process_group"} and scope_of(source, call) is built.scope
    ]
    return any(here) if here or built.scope is source.module else bool(makes)


def _is_before(step: TrainingStep, node: cst.CSTNode) -> bool:
    return step.source.span(node)[0] < step.source.span(step.backward)[1]


def _between(step: TrainingStep, reducing: Statement) -> bool:
    """Whether gradients are read or changed after the backward pass and before they are reduced."""
    source = step.source
    start, end = source.span(step.backward)[1], source.span(reducing)[0]
    between = source.text[start:end]
    return ".grad" in between or "clip_grad" in between or "unscale_" in between


def _data_parallel_module(request: Request) -> Advice | None:
    """Return what to write in the place of `nn.DataParallel`."""
    for path, text in request.sources.items():
        if "DataParallel(" not in text:
            continue
        for match in re.finditer(
            r"^[ \t]*(?P<name>[\w.]+) = (?:\w+\.)*DataParallel\((?P<model>[\w.]+)(?P<rest>.*)\)", text, re.M
        ):
            line = text[: match.start("name")].count("\n") + 1
            ids = re.search(r"device_ids=\[([^\]]*)\]", match["rest"])
            devices = str(len(ids[1].split(","))) if ids else "<devices>"
            script = (request.entry or path).rpartition("/")[2]
            return Advice(
                _FOR_ONE_PROCESS.format(
                    line=f"{path}:{line}", name=match["name"], model=match["model"], devices=devices, script=script
                )
            )
    return None


def _recorded(text: str) -> Request:
    return example_request("unoverlapped-gradients", text)


_BEFORE = """import torch
import torch.distributed as dist


def average_gradients(model):
    size = float(dist.get_world_size())
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad.data, op=dist.ReduceOp.SUM)
        parameter.grad.data /= size


def main():
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        average_gradients(model)
        optimizer.step()
    torch.save(model.state_dict(), "net.pt")
"""
_AFTER = """import torch
import torch.distributed as dist


def main():
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = Net().cuda()
    model = torch.nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
    torch.save(model.module.state_dict(), "net.pt")
"""
_STARTED_BY = """

def start(rank, size, run):
    dist.init_process_group("gloo", rank=rank, world_size=size)
    run()
"""

FIXER = Fixer(
    name="use-ddp",
    rewrite=rewrite,
    gate=Gate.ROUNDING,
    mechanism="exposed_comm+idle+compute",
    order=20,
    examples=(
        Example(_BEFORE, _AFTER, _recorded),
        Example(
            _BEFORE.replace("        average_gradients(model)\n", "")
            .replace(_BEFORE[_BEFORE.index("def average") : _BEFORE.index("def main")], "")
            .replace(
                "        optimizer.step()",
                "        for p in model.parameters():\n            if p.grad is not None:\n"
                "                dist.all_reduce(p.grad)\n                p.grad.div_(dist.get_world_size())\n"
                "        optimizer.step()",
            ),
            _AFTER.replace("buffers=False)", "buffers=False, find_unused_parameters=True)"),
            _recorded,
        ),
        Example(_BEFORE.replace("        parameter.grad.data /= size\n", ""), None, _recorded),
        Example(_BEFORE.replace("    torch.manual_seed(0)\n", ""), None, _recorded),
        Example(_BEFORE.replace("manual_seed(0)", "manual_seed(dist.get_rank())"), None, _recorded),
        Example(_BEFORE.replace("    for x, y", "    names = [model]\n    for x, y"), None, _recorded),
        Example(_BEFORE.replace("ReduceOp.SUM)", "ReduceOp.SUM, group=replicas)"), None, _recorded),
        Example(_BEFORE.replace("ReduceOp.SUM)", "ReduceOp.MAX)"), None, _recorded),
        Example(_BEFORE.replace('    dist.init_process_group("nccl")\n', ""), None, _recorded),
        Example(
            _BEFORE.replace('    dist.init_process_group("nccl")\n', "") + _STARTED_BY,
            _AFTER.replace('    dist.init_process_group("nccl")\n', "") + _STARTED_BY,
            _recorded,
        ),
        Example(
            _BEFORE.replace('    dist.init_process_group("nccl")\n', "").replace(
                "    for x, y", '    dist.init_process_group("nccl")\n    for x, y'
            ),
            None,
            _recorded,
        ),
        Example("model = nn.DataParallel(model, device_ids=[0, 1])\n", None, _recorded),
        Example(_AFTER, None, _recorded),
    ),
)
