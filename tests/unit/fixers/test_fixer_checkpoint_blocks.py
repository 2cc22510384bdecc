"""checkpoint-blocks on programs that run: what their first steps record leads to edits with the same numbers."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from diagnose.collect.inside.hooks.sites import Sites
from diagnose.collect.inside.probes.blocks.block_probe import TIMES, Blocks
from diagnose.fixer import Advice, Edits, Request, Scalar, example_request
from diagnose.model import Site
from diagnose.plugins import load

FIXER = load().fixers["checkpoint-blocks"]
GB = 1_000_000_000

BLOCK = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.drop = nn.Linear(8, 8), nn.Dropout(0.5)

    def forward(self, x, scale=1.0):
        return x + scale * self.drop(torch.tanh(self.up(x)))
"""
LOOP = f"""import torch
from torch import nn
{BLOCK}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x):
        for block in self.blocks:
            x = block(x, scale=0.5)
        return x
"""
COUNTED = LOOP.replace("for block in self.blocks:", "for i in range(len(self.blocks)):").replace(
    "x = block(x, scale", "x = self.blocks[i](x, scale"
)
NUMBERED = LOOP.replace("for block in self.blocks:", "for layer, block in enumerate(self.blocks):").replace(
    "x = block(x, scale=0.5)", "h = block(x)\n            x = h if layer else h + 1"
)
ZIPPED = LOOP.replace("for block in self.blocks:", "for block, scale in zip(self.blocks, (0.5, 1, 2, 3)):").replace(
    "scale=0.5", "scale"
)
ADDED = LOOP.replace("x = block(x, scale=0.5)", "x = x + block(x)[..., :8]")
STACK = LOOP.replace("ModuleList(Block() for _ in range(4))", "Sequential(*[Block() for _ in range(4)])").replace(
    "        for block in self.blocks:\n            x = block(x, scale=0.5)\n        return x",
    "        return torch.relu(self.blocks(x * 2))",
)
NAMED = STACK.replace("return torch.relu(self.blocks(x * 2))", "x = self.blocks(x)\n        return x")
HEADED = STACK.replace(
    "Sequential(*[Block() for _ in range(4)])", "Sequential(nn.Linear(8, 8), *[Block() for _ in range(4)], nn.Tanh())"
)
TWO_LOOPS = LOOP.replace(
    "        return x\n", "        for block in self.more:\n            x = block(x)\n        return x\n"
).replace("4))\n", "4))\n        self.more = nn.ModuleList(Block() for _ in range(2))\n")
TAKEN = LOOP.replace("x = block(x, scale=0.5)", "x = block(x)\n            checkpoint = number = 1")
PROGRAMS = {
    "a loop over a list": LOOP,
    "indices": COUNTED,
    "a loop that counts": NUMBERED,
    "a loop over a list and something else": ZIPPED,
    "a block within an expression": ADDED,
    "a stack within an expression": STACK,
    "a stack": NAMED,
    "a stack with other parts": HEADED,
    "two loops": TWO_LOOPS,
    "names that are taken": TAKEN,
}


def made(text: str) -> Any:
    """The model of a program, always with the same weights; its lines are those of train.py."""
    space: dict[str, Any] = {"__name__": "train"}
    exec(compile(text, "/home/user/train.py", "exec"), space)
    torch.manual_seed(0)
    return space["Net"]()


def sites_of(text: str) -> tuple[Site, ...]:
    """What the probe records of a program's first steps."""
    sites = Sites()
    sites.ownership.roots.append("/home/user")
    probe = Blocks(sites)
    model = made(text)
    probe.install(torch)
    for index in range(TIMES + 1):
        model(torch.ones(3, 8)).sum().backward()
        probe.step_ended(index)
    probe.finish()
    lines = [json.loads(line) for _, text in sites.drain() for line in text.splitlines()]
    return tuple(Site(**{**line, "file": "train.py"}) for line in lines)


def request_of(text: str, sites: tuple[Site, ...], again: str | None = None) -> Request:
    setting: dict[str, Scalar] = {} if again is None else {"again": again}
    return example_request("memory-pressure", text, sites=sites, setting=setting)


def numbers_of(text: str) -> list[torch.Tensor]:
    """The loss and every gradient."""
    model = made(text)
    torch.manual_seed(1)
    loss = model(torch.linspace(-1, 1, 24).reshape(3, 8)).square().sum()
    loss.backward()
    return [loss.detach(), *(parameter.grad for parameter in model.parameters())]


def blocks_run(text: str) -> int:
    """How often blocks run in a step."""
    counted = "    def forward(self, x, scale=1.0):\n        RUNS.append(1)\n"
    space: dict[str, Any] = {"__name__": "train", "RUNS": []}
    exec(text.replace("    def forward(self, x, scale=1.0):\n", counted), space)
    space["Net"]()(torch.ones(3, 8)).sum().backward()
    return len(space["RUNS"])


@pytest.mark.parametrize("again", ["0-1", "0,2", "3", "all"])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_the_chosen_blocks_run_twice_and_no_bit_changes(program: str, again: str) -> None:
    answer = FIXER.rewrite(request_of(program, sites_of(program), again))
    assert isinstance(answer, Edits), answer
    fixed = answer.files["train.py"]
    count = blocks_run(program)
    assert blocks_run(fixed) - count == {"0-1": 2, "0,2": 2, "3": 1, "all": count}[again]
    assert all(map(torch.equal, numbers_of(program), numbers_of(fixed)))


@pytest.mark.parametrize(
    ("begins", "drop", "edited"),
    [
        ("x += 1", "nn.Dropout(0.5)", False),
        ("x = self.drop(x)", "nn.Dropout(0.5, inplace=True)", False),
        ("x = x * 2\n        x += 1", "nn.Dropout(0.5)", True),
        ("x = self.drop(x)", "nn.Dropout(0.5)", True),
        ("x = self.drop(x * 2)", "nn.Dropout(0.5, inplace=True)", True),
    ],
)
def test_a_block_that_changes_its_input_would_find_it_changed(begins: str, drop: str, edited: bool) -> None:
    text = LOOP.replace("nn.Dropout(0.5)", drop).replace("self.drop(torch.tanh(self.up(x)))", "torch.tanh(self.up(x))")
    text = text.replace("return x +", f"{begins}\n        return x +", 1)
    answer = FIXER.rewrite(request_of(text, sites_of(text), "all"))
    assert isinstance(answer, Edits) is edited, answer
    assert edited or "changes its input in place" in getattr(answer, "text", "")


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_what_is_computed_again_already_is_left_alone(program: str) -> None:
    answer = FIXER.rewrite(request_of(program, sites_of(program), "0-1"))
    assert isinstance(answer, Edits)
    assert not isinstance(FIXER.rewrite(request_of(answer.files["train.py"], sites_of(program), "0-1")), Edits)


def test_without_a_device_parts_of_the_blocks_are_tried() -> None:
    request = request_of(LOOP, sites_of(LOOP))
    assert [setting["again"] for setting in FIXER.settings(request)] == ["0", "0-1", "0-2", "0-3"]


def test_a_record_of_a_program_that_died_leaves_out_what_cannot_fit() -> None:
    (site,) = sites_of(LOOP)
    columns = {"kept_bytes": [5 * GB] * 4, "boundary_bytes": [GB // 2] * 4}
    told = {name: ",".join(map(str, column)) for name, column in columns.items()}
    died = Site(
        site.kind, "train.py", site.line, None, {**site.arguments, **told, "limit_bytes": 20 * GB, "held_bytes": GB}
    )
    optimizer = Site("optimizer", "train.py", 1, None, {"name": "AdamW", "elements": GB // 4})
    settings = FIXER.settings(request_of(LOOP, (died, optimizer)))
    # 1 held, 20 kept, 3 for gradients and the optimizer's state: two blocks' 4.5 have to go.
    assert [setting["again"] for setting in settings] == ["0-1", "0-2", "0-3"]


def test_running_statistics_are_not_moved_twice() -> None:
    program = LOOP.replace("nn.Dropout(0.5)", "nn.BatchNorm1d(8)")
    answer = FIXER.rewrite(request_of(program, sites_of(program), "all"))
    assert isinstance(answer, Advice) and "BatchNorm" in answer.text


def test_the_vectors_of_a_spectral_norm_are_not_moved_twice() -> None:
    for normed in ("nn.utils.spectral_norm", "nn.utils.parametrizations.spectral_norm"):
        program = LOOP.replace("nn.Linear(8, 8), nn.Drop", f"{normed}(nn.Linear(8, 8)), nn.Drop")
        answer = FIXER.rewrite(request_of(program, ()))
        assert isinstance(answer, Advice) and "each forward pass moves on" in answer.text
    assert {site.arguments["stateful"] for site in sites_of(program) if "stateful" in site.arguments} == {True}


LIBRARY = """import torch
from transformers import GPT2LMHeadModel

model = GPT2LMHeadModel.from_pretrained("gpt2").cuda()
optimizer = torch.optim.AdamW(model.parameters())
for batch in loader:
    loss = model(**batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def in_library(**arguments: Scalar) -> Site:
    told: dict[str, Scalar] = {"order": "0,1", "kept_bytes": "9,9", "boundary_bytes": "1,1", "cast_bytes": "0,0"}
    told |= {"forward_ns": "1,1", "forward_peak_bytes": "9,18", "backward_peak_bytes": "9,18", "through": "loop"}
    file = "/usr/lib/python3/site-packages/transformers/models/gpt2/modeling_gpt2.py"
    return Site("blocks", file, 900, "GPT2Model.forward", {**told, **arguments}, owned=False)


def test_a_model_of_hugging_faces_has_a_switch_of_its_own() -> None:
    answer = FIXER.rewrite(request_of(LIBRARY, (in_library(),), "all"))
    assert isinstance(answer, Edits)
    new = 'model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})\n'
    assert answer.files["train.py"] == LIBRARY.replace("optimizer = ", f"{new}optimizer = ")


def test_its_trainer_is_told_in_its_arguments() -> None:
    program = "from transformers import Trainer, TrainingArguments\n\nargs = TrainingArguments('out', fp16=True)\n"
    answer = FIXER.rewrite(request_of(program, (in_library(),), "all"))
    assert isinstance(answer, Edits)
    assert answer.files["train.py"] == program.replace("fp16=True", "fp16=True, gradient_checkpointing=True")


HALVES = f"""import torch
from torch import nn

{BLOCK}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(4)])

    def forward(self, x):
        for half in (self.blocks[:2], self.blocks[2:]):
            for block in half:
                x = block(x)
        return x
"""


@pytest.mark.parametrize("name", ["checkpoint-blocks", "offload"])
def test_blocks_that_come_part_by_part_have_no_number(name: str) -> None:
    """`number < 2` would be true of every block of parts that have two."""
    sites = sites_of(HALVES)
    assert [site.arguments["order"] for site in sites if site.kind == "blocks"] == ["0,1,2,3"]
    for blocks, kind in (("0-1", Advice), ("0-3", Edits)):
        setting: dict[str, Scalar] = {"again": blocks, "blocks": blocks}
        request = example_request("memory-pressure", HALVES, sites=sites, setting=setting)
        assert isinstance(load().fixers[name].rewrite(request), kind)


def test_without_a_record_a_stack_whose_result_is_averaged_is_found_once() -> None:
    text = STACK.replace("torch.relu(self.blocks(x * 2))", "self.blocks(x * 2).mean(1)")
    answer = FIXER.rewrite(request_of(text, ()))
    assert isinstance(answer, Edits)
    assert "        for block in self.blocks:\n" in answer.files["train.py"]
    assert "        return hidden.mean(1)\n" in answer.files["train.py"]


POOLED = LOOP.replace(
    "        self.blocks =",
    "        self.pools = nn.ModuleList([nn.Identity()] + [nn.AvgPool1d(1)] * 3)\n        self.blocks =",
).replace("for block in self.blocks:", "for pool, block in zip(self.pools, self.blocks):\n            x = pool(x)")


def test_without_a_record_what_is_zipped_with_blocks_is_no_block() -> None:
    answer = FIXER.rewrite(example_request("memory-pressure", POOLED))
    assert isinstance(answer, Edits)
    assert (
        "x = pool(x)\n            x = checkpoint(block, x, scale=0.5, use_reentrant=False)" in answer.files["train.py"]
    )
