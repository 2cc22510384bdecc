"""Measures the cost of offloading a plan's blocks to the host, against recomputing the same blocks.

    python benchmarks/offload.py --out OUT [--device cuda|cpu] [--tiny]

The transformer of `checkpoint_plan.py`. For a quarter, half and all of its blocks: the step and the peak with
`diagnose.kernels.offload`, with torch's own `save_on_cpu(pin_memory=True)`, and with checkpoints; and whether loss and
gradients are those of the program as it is, bit for bit.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import checkpoint_bench  # first: it sets what torch reads when it is imported
import torch
import torch.nn.functional as F
from checkpoint_bench import TINY, Bench, Shape, whole_blocks
from torch import Tensor
from torch.autograd.graph import save_on_cpu

from diagnose.kernels import offload
from diagnose.units import format_bytes

SHARES = (0.25, 0.5, 1.0)


class Offloading(checkpoint_bench.Transformer):
    """The blocks of `again` within a context."""

    context: Callable[[], AbstractContextManager[object]] = nullcontext

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words)
        for number, block in enumerate(self.blocks):
            with self.context() if number in self.again else nullcontext():
                x = block(x)
        loss: Tensor = F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), words.flatten())
        return loss


def main() -> None:
    """Measure each way; the table comes last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for offload.json")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="a model that runs anywhere in seconds")
    args = parser.parse_args()
    shape = TINY if args.tiny else Shape()
    ways: dict[str, Callable[[], AbstractContextManager[object]] | None] = {
        "offload": offload,
        "save_on_cpu": lambda: save_on_cpu(pin_memory=args.device == "cuda"),
        "checkpoint": None,
    }
    rows = []
    for name, context in ways.items():
        bench = Bench(shape, args.device)
        if context is not None:
            bench.model = offloading(bench, context)
            bench.optimizer = torch.optim.SGD(bench.model.parameters(), lr=1e-3)
        for share in (0.0, *SHARES):
            rows.append(measured(bench, name, range(round(share * shape.blocks))))
            print(rows[-1]["line"], flush=True)
        del bench
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "offload.json").write_text(json.dumps(rows, indent=1))


def offloading(bench: Bench, context: Callable[[], AbstractContextManager[object]]) -> Offloading:
    """Return a model with these weights whose blocks offload their saved tensors."""
    model = Offloading(bench.shape).to(bench.device)
    model.load_state_dict(bench.model.state_dict())
    model.context = context
    return model


def measured(bench: Bench, name: str, again: Collection[int]) -> dict[str, object]:
    """One way, for some of the blocks."""
    plan = whole_blocks(again)
    (run,) = bench.in_turns([plan])
    same = bench.same_gradients(plan)
    said = "gradients bitwise equal" if same else "GRADIENTS DIFFER"
    line = f"{name:12} {len(plan.again):2} blocks  {run.step_ms:7.1f} ms  peak {format_bytes(run.peak_bytes)}  {said}"
    return {"way": name, "blocks": len(plan.again), "step_ms": run.step_ms, "peak_bytes": run.peak_bytes, "line": line}


if __name__ == "__main__":
    main()
