"""checkpoint-blocks on models that are no plain chain of blocks: every plan it offers leaves each bit as it was, or it
says why there is none."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from test_fixer_checkpoint_blocks import BLOCK, FIXER, GB, LOOP, numbers_of, request_of, sites_of

from diagnose.fixer import Advice, Edits, Request
from diagnose.model import Site

HEAD = f"""import torch
from torch import nn
{BLOCK}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
"""
LAYERS = "        self.blocks = nn.ModuleList(Block() for _ in range(4))\n"
SKIPS = f"""{HEAD}        self.down = nn.ModuleList(Block() for _ in range(3))
        self.up = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        skips = []
        for block in self.down:
            x = block(x)
            skips.append(x)
        for block in self.up:
            x = block(x + skips.pop())
        return x
"""
TWO_INPUTS = f"""{HEAD}        self.encoder = nn.ModuleList(Block() for _ in range(3))
        self.decoder = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        memory = x
        for block in self.encoder:
            memory = block(memory)
        for block in self.decoder:
            x = block(x, memory)
        return x
"""
SHARED = f"""{HEAD}        one = Block()
        self.blocks = nn.ModuleList([one, Block(), one, Block()])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x
"""
TWICE = f"""{HEAD}{LAYERS}
    def forward(self, x):
        for _ in range(2):
            for block in self.blocks:
                x = block(x)
        return x
"""
SIAMESE = f"""{HEAD}{LAYERS}
    def tower(self, x):
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, x):
        return self.tower(x) * self.tower(x + 1)
"""
EXPERTS = f"""{HEAD}{LAYERS}        self.gate = nn.Linear(8, 4)

    def forward(self, x):
        chosen, out = self.gate(x).argmax(-1), torch.zeros_like(x)
        for number, expert in enumerate(self.blocks):
            at = chosen == number
            if at.any():
                out[at] = expert(x[at])
        return x + out
"""
SKIPPED = f"""{HEAD}{LAYERS}        self.calls = 0

    def forward(self, x):
        self.calls += 1
        for number, block in enumerate(self.blocks):
            if number == 2 and self.calls % 2:
                continue
            x = block(x)
        return x
"""
ADAPTED = LOOP.replace(
    "    def forward(self, x, scale=1.0):\n",
    "        self.up.requires_grad_(False)\n        self.low = nn.Linear(8, 8, bias=False)\n\n"
    "    def forward(self, x, scale=1.0):\n        x = x + self.low(x)\n",
)
WITHOUT_GRADIENTS = f"""{HEAD}{LAYERS}        self.head = nn.Linear(8, 8)

    def forward(self, x):
        with torch.no_grad():
            for block in self.blocks:
                x = block(x)
        return self.head(x)
"""
PARTLY_FROZEN = f"""{HEAD}{LAYERS}        self.blocks[0].requires_grad_(False)
        self.blocks[1].requires_grad_(False)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x
"""
CHECKPOINTED = LOOP.replace("block(x, scale=0.5)", "checkpoint(block, x, scale=0.5, use_reentrant=False)").replace(
    "from torch import nn\n", "from torch import nn\nfrom torch.utils.checkpoint import checkpoint\n"
)
MODELS = {
    "skips from one half to the other": SKIPS,
    "an encoder that the decoder reads": TWO_INPUTS,
    "a block that is there twice": SHARED,
    "blocks that run twice": TWICE,
    "two towers of the same blocks": SIAMESE,
    "experts of a mixture": EXPERTS,
    "a block that is left out at times": SKIPPED,
    "adapters beside frozen weights": ADAPTED,
    "a backbone that is frozen in part": PARTLY_FROZEN,
}


def _recorded(text: str) -> Request:
    return request_of(text, sites_of(text))


@pytest.mark.parametrize("program", MODELS.values(), ids=MODELS)
def test_no_plan_changes_a_bit(program: str) -> None:
    request = _recorded(program)
    settings = FIXER.settings(request)
    assert settings
    for setting in settings:
        answer = FIXER.rewrite(replace(request, setting=setting))
        assert isinstance(answer, Edits), answer
        before, after = numbers_of(program), numbers_of(answer.files["train.py"])
        assert [one is None for one in before] == [one is None for one in after]
        assert all(torch.equal(*pair) for pair in zip(before, after, strict=True) if pair[0] is not None)


def test_blocks_without_gradients_have_nothing_to_give() -> None:
    answer = FIXER.rewrite(_recorded(WITHOUT_GRADIENTS))
    assert isinstance(answer, Advice) and "keep nothing on the device for the backward pass" in answer.text


def test_blocks_that_are_checkpointed_already_are_not_called_frozen() -> None:
    """Where memory ran out in the first forward pass, nothing was seen to run again."""
    (site,) = sites_of(CHECKPOINTED)
    told = {name: value for name, value in site.arguments.items() if not name.startswith("again")}
    answer = FIXER.rewrite(request_of(CHECKPOINTED, (replace(site, arguments=told),)))
    assert isinstance(answer, Advice) and "are computed again already" in answer.text


def test_what_an_allocator_rounds_up_is_nothing_kept() -> None:
    """Two frozen blocks return 100,000 bytes, for which a device's allocator takes 100,352."""
    (site,) = sites_of(LOOP)
    columns = {"kept_bytes": "100352,100352,400896,400896", "boundary_bytes": "100000,100000,100000,100000"}
    measured = replace(site, arguments={**site.arguments, **columns, "cast_bytes": "0,0,0,0"})
    settings = FIXER.settings(request_of(LOOP, (measured,)))
    assert {setting["again"] for setting in settings} == {"2", "2-3"}


def test_frozen_blocks_are_in_no_plan() -> None:
    """No gradient goes through them: they would be wrapped, and nothing saved."""
    assert {setting["again"] for setting in FIXER.settings(_recorded(PARTLY_FROZEN))} == {"2", "2-3"}


@pytest.mark.parametrize(("limit_bytes", "enough"), [(30 * GB, True), (9 * GB, False)])
def test_a_plan_that_cannot_be_enough_says_so(limit_bytes: int, enough: bool) -> None:
    """Beside what blocks keep, 10 GB are held: no choice among them comes below that."""
    (site,) = sites_of(LOOP)
    peaks = {"turn_peak_bytes": 31 * GB, "back_peak_bytes": 31 * GB, "rest_peak_bytes": 10 * GB}
    columns = {
        "kept_bytes": [5 * GB] * 4,
        "boundary_bytes": [GB // 4] * 4,
        "forward_peak_bytes": [10 * GB + 5 * GB * place for place in range(1, 5)],
        "backward_peak_bytes": [10 * GB + 5 * GB * place for place in range(1, 5)],
    }
    told = {name: ",".join(map(str, column)) for name, column in columns.items()}
    measured = Site(
        site.kind, "train.py", site.line, None, {**site.arguments, **told, **peaks, "limit_bytes": limit_bytes}
    )
    answer = FIXER.rewrite(request_of(LOOP, (measured,), "all"))
    assert isinstance(answer, Edits)
    assert ("not enough alone" in answer.summary) is not enough
