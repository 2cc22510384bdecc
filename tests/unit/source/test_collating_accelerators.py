"""What a collate function may ask of an accelerator, which processes otherwise do not share."""

from __future__ import annotations

import pytest
from dataset_programs import asked, program, refused

from diagnose.fixer import Edits

ACCELERATOR = "from accelerate import Accelerator\n\naccelerator = Accelerator()\n\n\ndef collate(rows):\n    {line}\n"
PADDED = "    return torch.stack([row for row, _ in rows]), padding\n"


def collating(line: str, step: str = "pass") -> str:
    top = ACCELERATOR.format(line=line) + PADDED
    return program(top=top, options=", collate_fn=collate", step=step)


@pytest.mark.parametrize("step", ["pass", "accelerator.clip_grad_norm_(model.parameters(), 1.0)"])
def test_a_fact_of_it_may_be_compared_and_gradients_clipped(step: str) -> None:
    answer = asked("loader-workers", collating('padding = 8 if accelerator.mixed_precision == "fp8" else 1  # !', step))
    assert isinstance(answer, Edits), answer


@pytest.mark.parametrize(
    "line", ["padding = accelerator.process(rows)", "padding = pad(accelerator)", "padding = accelerator.padding"]
)
def test_more_than_a_comparison_is_not_done_in_a_worker(line: str) -> None:
    refused("loader-workers", collating(line), "accelerator = Accelerator()")
