"""The operator of AdamW is declared in words that torch 2.6 reads, too."""

from __future__ import annotations

import torch

from diagnose.kernels import adamw


def test_the_declared_signature_is_that_of_the_function() -> None:
    update = adamw._update._init_fn
    assert torch.library.infer_schema(update, mutates_args=adamw._CHANGED) == adamw._SCHEMA
