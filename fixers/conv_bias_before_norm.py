"""Leaves out the bias of convolutions that a batch normalisation follows.

What it changes
    Passes `bias=False` where the program builds a convolution whose result goes straight into a batch normalisation,
    in a `Sequential` or in a `forward`.

Why it helps
    Batch normalisation subtracts the mean of each channel, and with it any constant. The bias is added in a kernel of
    its own, its gradient is a sum over all images, and the optimizer updates it: all for nothing.

Fix safety
    Training: in exact arithmetic the same outputs and the same gradients of everything else, but the program has fewer
    parameters. Checkpoints with the old keys do not load without `strict=False`, and as the bias draws random numbers
    for its initial values, all layers after it begin with others. Left alone: programs that load weights, or that
    initialise or read `.bias` without asking whether there is one.
"""

from __future__ import annotations

import re

from diagnose.fixer import Advice, Answer, Edits, Example, Fixer, Gate, Request, example_request
from diagnose.source.patterns.conv_norms import biased_before_norm
from diagnose.source.tree.arguments import set_keywords
from diagnose.source.tree.edits import Splice, parse

_LOADS = re.compile(r"\bload_state_dict\(|\bload_from_checkpoint\(")
_READS = re.compile(r"(?<!endswith\([\"'])\.bias\b(?!\s*is\b)")  # `name.endswith(".bias")` reads none
_ASKS = re.compile(r"\.bias\s+is\s+(?:not\s+)?None|hasattr\([^)]*[\"']bias[\"']|if\s+[\w.]+\.bias\s*:")


def rewrite(request: Request) -> Answer:
    """Leave the bias out of every such convolution."""
    edits: list[tuple[str, list[Splice]]] = []
    for path, text in request.sources.items():
        source = parse(text) if "Conv" in text and "BatchNorm" in text else None
        if source is not None:
            convs = biased_before_norm(source)
            edits += [(path, set_keywords(source, conv, {"bias": "False"}, positions={"bias": 7})) for conv in convs]
    files = request.edited(edits)
    if not files:
        return None
    texts = request.sources.values()
    if any(_LOADS.search(text) for text in texts):
        return Advice(
            "Convolutions before a batch normalisation need no bias. The program loads weights, which may hold them: "
            "pass bias=False and load with strict=False, or leave them."
        )
    if any(_READS.search(text) and not _ASKS.search(text) for text in texts):
        return Advice(
            "Convolutions before a batch normalisation need no bias. The program reads `.bias` without asking whether "
            "there is one: ask there, then pass bias=False."
        )
    return Edits(
        files, f"leave the bias out of {len(edits)} convolution{'s' if len(edits) > 1 else ''} before a normalisation"
    )


def _recorded(text: str) -> Request:
    return example_request("conv-heuristics", text)


_IMPORT = "from torch import nn\n\n"
_CLASS = (
    _IMPORT + "\nclass Block(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    "        self.conv = nn.Conv2d(8, 8, 3{0})\n        self.norm = nn.BatchNorm2d(8)\n\n"
    "    def forward(self, x):\n{1}"
)
_ONE = "        return self.norm(self.conv(x)).relu()\n"
_TWO = "        x = self.conv(x)\n        x = self.norm(x)\n        return x\n"

FIXER = Fixer(
    name="conv-bias-before-norm",
    rewrite=rewrite,
    gate=Gate.TRAINING,
    fewer_parameters=True,
    mechanism="compute+idle.dispatch+idle.launch",
    order=50,
    examples=(
        Example(_CLASS.format("", _ONE), _CLASS.format(", bias=False", _ONE), _recorded),
        Example(_CLASS.format("", _TWO), _CLASS.format(", bias=False", _TWO), _recorded),
        Example(
            before=_IMPORT + "net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 1))\n",
            after=_IMPORT
            + "net = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 1))\n",
            request=_recorded,
        ),
        Example(_IMPORT + "net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.BatchNorm2d(8))\n", None, _recorded),
        Example(_IMPORT + "net = nn.Sequential(nn.Conv2d(3, 8, 3, bias=bias), nn.BatchNorm2d(8))\n", None, _recorded),
        Example(
            _CLASS.format("", "        y = self.conv(x)\n        return self.norm(y) + self.conv(y)\n"), None, _recorded
        ),
        Example(
            before=_CLASS.format("", _ONE) + "\nplain = [name for name in names if name.endswith('.bias')]\n",
            after=_CLASS.format(", bias=False", _ONE)
            + "\nplain = [name for name in names if name.endswith('.bias')]\n",
            request=_recorded,
        ),
        Example(_CLASS.format("", _ONE) + "\nnn.init.zeros_(block.conv.bias)\n", None, _recorded),
        Example(_CLASS.format("", _ONE) + "\nnorm = state[layer + '.bias'].norm()\n", None, _recorded),
        Example(_CLASS.format("", _ONE) + "\nmodel.load_state_dict(weights)\n", None, _recorded),
    ),
)
