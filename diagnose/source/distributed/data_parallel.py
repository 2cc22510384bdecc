"""Where the program wraps its model for data-parallel training, or tells a library how to: the call and its options."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import libcst as cst

from diagnose.model import Facts, Scalar, Site
from diagnose.source.dataflow.flow import within
from diagnose.source.models.model_construction import built_model
from diagnose.source.training.training_loop import TrainingStep
from diagnose.source.tree.arguments import argument, has_star
from diagnose.source.tree.edits import call_name, insert_after, top_of_program
from diagnose.source.tree.memo import parse_all
from diagnose.source.tree.syntax import Source, Splice
from diagnose.source.tree.text_lines import any_matches

_WRAPPERS = frozenset({"DistributedDataParallel", "DDP"})
_TELL = frozenset({"DistributedDataParallelKwargs", "DDPStrategy"})
"""Classes of accelerate and Lightning whose arguments are passed on, under the same names, to the wrapper."""
_LIBRARIES = frozenset({"torch", "accelerate", "lightning", "pytorch_lightning"})
"""The packages whose wrappers count; other packages have wrappers of the same names, which know other options."""
_SITE = "DistributedDataParallel"
_GROUPS = ("process_group", "device_mesh")
_BEFORE_GROUP = 5
"""Arguments of DistributedDataParallel before the group, by place."""
_SYNCS, _SYNCED = "forward_sync_buffers", "broadcast_buffers"
"""The option that lets ranks keep their buffers in forward passes, and its former name."""
_SYNCS_SINCE = (2, 13)
"""The torch that has the new one, and warns of the former: `nn/parallel/distributed.py`."""
_HAS_HOOK = re.compile(r"register_comm_hook|comm_hook\s*=")
_GLOO = re.compile(r"""init_process_group\(\s*(?:["']gloo["']|[^()]*\bbackend\s*=\s*["']gloo["'])""")
_HALF = re.compile(r"\.(?:bfloat16|half)\(\)|\.to\(\s*(?:dtype=)?torch\.(?:bfloat16|float16)")


@dataclass(frozen=True)
class DataParallel:
    """One call that makes a DistributedDataParallel, or says how a library shall make it."""

    path: str
    source: Source = field(repr=False)
    call: cst.Call = field(repr=False)
    site: Site | None
    """The call as the run recorded it."""

    @property
    def line(self) -> str:
        """The wrapper as a line of text, for messages."""
        return f"{self.path}:{self.source.lines_of(self.call)[0]}"

    @property
    def is_wrapper(self) -> bool:
        """Whether the call itself makes the wrapper."""
        return not _WRAPPERS.isdisjoint(_known_as(self.source, self.call))

    @property
    def open(self) -> bool:
        """Whether options come from a mapping that only the running program knows."""
        return has_star(self.call)

    @property
    def may_be_of_a_group(self) -> bool:
        """Whether the wrapper may reduce over other ranks than all of the job: over one stage of a pipeline, say."""
        by_place = sum(arg.keyword is None for arg in self.call.args) > _BEFORE_GROUP
        return self.open or by_place or any(self.given(option) is not None for option in _GROUPS)

    @property
    def name(self) -> str | None:
        """The program's name for the wrapped model; None where it has no single name."""
        parent = self.source.parent(self.call)
        if isinstance(parent, cst.Assign) and len(parent.targets) == 1:
            return self.source.code(parent.targets[0].target)
        return self.source.code(parent.target) if isinstance(parent, cst.AnnAssign) else None

    def given(self, option: str) -> cst.BaseExpression | None:
        """The code of an option, where the call has it."""
        found = argument(self.call, option)
        return found.value if found is not None else None

    def code(self, option: str) -> str | None:
        """The code of an option's value; None where it is not given."""
        value = self.given(option)
        return self.source.code(value) if value is not None else None

    def leaves(self, option: str, default: str) -> bool:
        """Whether an option can be set here and has its default (as code) so far."""
        return not self.open and self.code(option) in (None, default)

    @property
    def keeps_own_buffers(self) -> bool:
        """Whether its call says that ranks keep their buffers in forward passes."""
        return "False" in (self.code(_SYNCS), self.code(_SYNCED))

    def value(self, option: str) -> Scalar:
        """Return the value of an option as the run recorded it; None where it did not."""
        return self.site.arguments.get(option) if self.site is not None else None


def option_of_buffers(facts: Facts) -> str:
    """The name of the option with which, set to False, ranks keep their buffers in forward passes.

    By the former name they also keep those that they begin with.
    """
    return _SYNCS if facts.torch_release is not None and facts.torch_release >= _SYNCS_SINCE else _SYNCED


def data_parallel(sources: Mapping[str, str], sites: Sequence[Site] = ()) -> tuple[DataParallel, ...]:
    """Every such call, in the order of the sources; where a run recorded lines, the wrappers that are on them."""
    recorded = {(site.file, site.line): site for site in sites if site.kind == _SITE}
    found = [
        DataParallel(path, source, call, _site(recorded, path, source, call)) for path, source, call in _calls(sources)
    ]
    found = [one for one in found if one.site is not None or not _is_anothers(one.source, one.call)]
    ran = [one for one in found if one.site is not None or not one.is_wrapper]
    return tuple(ran if any(one.site is not None for one in ran) else found)


def _calls(sources: Mapping[str, str]) -> Iterator[tuple[str, Source, cst.Call]]:
    for path, source in parse_all(sources).items():
        if not source.mentions(*_WRAPPERS, *_TELL):
            continue
        for call in source.calls_named(*_WRAPPERS, *_TELL, *source.imported_as(*_WRAPPERS, *_TELL)):
            if _known_as(source, call) & (_WRAPPERS | _TELL):
                yield path, source, call


def _known_as(source: Source, call: cst.Call) -> set[str]:
    """Return what is called, by its own name and by that which the file gives it."""
    return {name.rpartition(".")[2] for name in source.names(call.func)} | {call_name(call)}


def _is_anothers(source: Source, call: cst.Call) -> bool:
    """Whether a class of the program's own, or of another library, only bears the name."""
    names = {name for name in source.names(call.func) if "<locals>" not in name}
    if any("." in name and name.partition(".")[0] not in _LIBRARIES for name in names):
        return True
    return any(each.name.value in names for each in source.module.body if isinstance(each, cst.ClassDef))


def _site(recorded: Mapping[tuple[str, int], Site], path: str, source: Source, call: cst.Call) -> Site | None:
    first, last = source.lines_of(call)
    return next((recorded[path, line] for line in range(first, last + 1) if (path, line) in recorded), None)


def carried_by_gloo(sources: Mapping[str, str], sites: Sequence[Site] = ()) -> bool:
    """Whether gradients go over gloo, as the run recorded it; else whether the program names it, and nothing else."""
    recorded = {one.value("backend") for one in data_parallel(sources, sites) if one.is_wrapper} - {None}
    if recorded:
        return "gloo" in recorded
    return any_matches(_GLOO, sources.values()) and not any("nccl" in text for text in sources.values())


def hooked_gradients(
    sources: Mapping[str, str], sites: Sequence[Site], imported: str, *lines: str
) -> list[tuple[str, list[Splice]]]:
    """Lines after the one wrapper of a program, and an import for them. In them `{name}` is what it is called, and
    `{group}` its group of ranks, None for all of the job.

    Empty where the wrapper has a hook already, has gradients of half precision, has no name, or shares its line with
    the question whether there is one.
    """
    wrappers = [one for one in data_parallel(sources, sites) if one.is_wrapper]
    if len(wrappers) != 1 or any_matches(_HAS_HOOK, sources.values()):
        return []
    (one,) = wrappers
    source = one.source
    statement, anchor = source.statement(one.call), top_of_program(source)
    alone = isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1
    if one.name is None or statement is None or not alone or anchor is None or _HALF.search(source.text):
        return []
    group = f"{one.name}.process_group" if one.may_be_of_a_group else "None"
    added = insert_after(source, statement, [line.format(name=one.name, group=group) for line in lines])
    return [(one.path, [insert_after(source, anchor, [imported]), added])]


def wrapper_of(step: TrainingStep, sources: Mapping[str, str], sites: Sequence[Site] = ()) -> DataParallel | None:
    """Return the wrapper that makes a step's model a DistributedDataParallel; None where there is none."""
    wrappers = [one for one in data_parallel(sources, sites) if one.is_wrapper]
    given = step.scope.params.params if isinstance(step.scope, cst.FunctionDef) else ()
    passed = any(each.name.value == step.model for each in given)
    for one in wrappers:
        if one.path == step.path and one.name == step.model and not passed:
            return one
    built = built_model(step, sources)
    for one in wrappers if built is not None else ():
        assert built is not None  # or there were none to look at
        if one.path == built.path and any(within(built.source, one.call, each) for each in built.assigned):
            return one
    return None
