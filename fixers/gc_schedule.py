"""Keeps Python's garbage collector from walking over everything that is alive while training.

What it changes
    Before the training loop, `gc.collect()` and `gc.freeze()` set aside what is alive by then. `gc.collect()` in the
    code that runs in every step goes. One of its settings also switches the automatic collector off, and collects
    every hundredth step instead.

Why it helps
    A collection of the oldest generation looks at every container object of the program: data sets, vocabularies and
    the modules of all libraries that were imported, again and again, while the device runs out of work. Frozen
    objects are not looked at.

Fix safety
    Bitwise: collections free memory and compute nothing. What is frozen is freed by its reference count as ever, but
    not if it is part of a cycle. Cycles that are made while training are still collected, by Python's own schedule or
    every hundredth step; those that hold tensors keep their memory until then. A program that arranges its own
    collections (`gc.freeze`, `gc.disable`, thresholds), or sees what is collected (`weakref`, `__del__`,
    `gc.get_objects`, `gc.isenabled`), is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import libcst as cst

from diagnose.fixer import Advice, Answer, Edits, Example, Fixer, Gate, Request, Scalar, example_request
from diagnose.source.dataflow.flow import loops_around
from diagnose.source.rewrite.removal import remove_statements
from diagnose.source.training.every_step import EveryStep, Stretch, counter_of
from diagnose.source.tree.edits import Splice, ensure_import, insert_above, insert_after, parse
from diagnose.source.tree.text_lines import matches

_ARRANGED = re.compile(r"\bgc\.(freeze|disable|enable|set_threshold)\(|\bfrom gc import\b")
_SEEN = re.compile(
    r"\bweakref\b|\b__del__\b|\bgc\.(?:get_\w+|isenabled|callbacks|garbage)\b|\btracemalloc\b|= *gc\.collect\("
)
_WORDS = frozenset({"gc", "weakref", "__del__", "tracemalloc"})
"""One of which a line of these has: to look for them in all lines takes long."""
_ABOUT = r"garbage|collect|memory|\bgc\b|\bfree"
_EVERY = 100  # steps between collections; chosen, not measured


def settings(request: Request) -> Sequence[Mapping[str, Scalar]]:
    """Freeze alone; then also collect by the number of steps, where the loop counts them."""
    loop = _loop(EveryStep(request.sources, request.finding.where))
    counted = loop is not None and loop.loop is not None and counter_of(loop.source, loop.loop)
    return [{"every": 0}, {"every": _EVERY}] if counted else [{"every": 0}]


def rewrite(request: Request) -> Answer:
    """Set aside what is alive before the loop, and collect less in it."""
    telling = (text for text in request.sources.values() if (source := parse(text)) is None or source.words & _WORDS)
    if any(matches(_ARRANGED, text) or matches(_SEEN, text) for text in telling):
        return None
    code = EveryStep(request.sources, request.finding.where)
    loop = _loop(code)
    gone = _collections(code)
    if loop is None:
        return Advice(
            "The training loop is in no file that we can edit: call gc.collect() and gc.freeze() before it starts."
        )
    every = request.setting.get("every", 0)
    turns = _within(loop, every)
    begins = code.beginning(loop)
    edits = [(path, remove_statements(code.sources[path], statements, _ABOUT)) for path, statements in gone.items()]
    # Where a function ends right above the loop that calls it, both go there: the end of its turn comes first.
    edits += [(loop.path, turns), (begins.path, _before(begins, bool(turns)))]
    what = f"collect garbage every {every} steps" if turns else "set aside what is alive before training"
    less = ", and do not collect garbage in every step" if gone else ""
    return Edits(request.edited(edits), what + less)


def _loop(code: EveryStep) -> Stretch | None:
    return next((stretch for stretch in code.stretches if stretch.loop is not None), None)


def _collections(code: EveryStep) -> dict[str, list[cst.Expr]]:
    """Calls of `gc.collect()` in every step, by file; none in handlers of errors."""
    found: dict[str, list[cst.Expr]] = {}
    for stretch, call in code.calls(here=["gc.collect"]):
        statement = stretch.source.parent(call)
        if stretch.source.inside(call, cst.ExceptHandler) is not None:
            continue  # it makes room for another attempt
        if stretch.source.code(call.func) == "gc.collect" and isinstance(statement, cst.Expr):
            found.setdefault(stretch.path, []).append(statement)
    return found


def _before(begins: Stretch, by_steps: bool) -> list[Splice]:
    """Return what training begins with."""
    gc, imports = ensure_import(begins.source, "gc")
    lines = [f"{gc}.collect()", f"{gc}.freeze()  # what is alive now stays: collections need not walk over it"]
    return [*imports, insert_above(begins.source, begins.body, [*lines, *[f"{gc}.disable()"] * by_steps])]


def _within(stretch: Stretch, every: Scalar) -> list[Splice]:
    """The collection in some of the steps."""
    source, loop = stretch.source, stretch.loop
    counter = counter_of(source, loop) if loop is not None else None
    if not every or loop is None or counter is None or not isinstance(loop.body, cst.IndentedBlock):
        return []
    gc, imports = ensure_import(source, "gc")
    turn = [f"if {counter} % {every} == 0:", f"{source.indentation}{gc}.collect()"]
    body = loop.body.body
    skips = any(loops_around(source, each)[0] is loop for each in source.every(cst.Continue, loop.body))
    # A turn that goes on to the next one early does not come to the end, and collects, too.
    return [*imports, insert_above(source, body[0], turn) if skips else insert_after(source, body[-1], turn)]


def _recorded(text: str, every: int = 0) -> Request:
    return example_request("gc-pause", text, setting={"every": every})


_TOP = "import torch\n\nbase = load()\n"
_STEP = "    model(x).sum().backward()\n    optimizer.step()\n"
_AGENT = (
    "class Agent:\n    def update(self):\n        for x in self.batches:\n"
    "            self.model(x).sum().backward()\n\n\n"
    "agent = Agent()\nwhile agent.lives():\n    agent.play()\n    agent.update()\n"
)
_FREEZE = "gc.collect()\ngc.freeze()  # what is alive now stays: collections need not walk over it\n"

FIXER = Fixer(
    name="gc-schedule",
    rewrite=rewrite,
    gate=Gate.BITWISE,
    mechanism="idle",
    settings=settings,
    order=20,
    examples=(
        Example(
            before="import gc\n" + _TOP + "for x in loader:\n" + _STEP + "    gc.collect()  # keeps memory down\n",
            after="import gc\n" + _TOP + _FREEZE + "for x in loader:\n" + _STEP,
            request=_recorded,
        ),
        Example(
            before=_TOP + "for epoch in range(3):\n    for i, x in enumerate(loader):\n        train(x)\n\n"
            "def train(x):\n    model(x).sum().backward()\n",
            after="import gc\n\nimport torch\n\nbase = load()\n"
            + _FREEZE
            + "for epoch in range(3):\n    for i, x in enumerate(loader):\n        train(x)\n\n"
            "def train(x):\n    model(x).sum().backward()\n",
            request=_recorded,
        ),
        Example(
            before=_TOP + _AGENT,
            after="import gc\n\n" + _TOP + _AGENT.replace("while", _FREEZE + "while"),
            request=_recorded,
        ),
        Example(
            before="import os\nimport torch\n\nfor i, x in enumerate(loader):\n" + _STEP,
            after="import gc\nimport os\nimport torch\n\n"
            + _FREEZE
            + "gc.disable()\nfor i, x in enumerate(loader):\n"
            + _STEP
            + "    if i % 100 == 0:\n        gc.collect()\n",
            request=lambda text: _recorded(text, 100),
        ),
        Example(
            before="import os\nimport torch\n\nfor i, x in enumerate(loader):\n    model(x).sum().backward()\n"
            "    if (i + 1) % 8:\n        continue\n    optimizer.step()\n",
            after="import gc\nimport os\nimport torch\n\n"
            + _FREEZE
            + "gc.disable()\nfor i, x in enumerate(loader):\n    if i % 100 == 0:\n        gc.collect()\n"
            "    model(x).sum().backward()\n    if (i + 1) % 8:\n        continue\n    optimizer.step()\n",
            request=lambda text: _recorded(text, 100),
        ),
        Example(
            before="import gc\n" + _TOP + "gc.disable()\nfor x in loader:\n" + _STEP, after=None, request=_recorded
        ),
        Example(before="import lightning\ntrainer.fit(model)\n", after=None, request=_recorded),
    ),
)
