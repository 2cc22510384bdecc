"""What the float64 reference hands to operators that insist on a format."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from diagnose.collect.inside.modes.reference import Arithmetic, _with_plain_attention


class Unscale:
    """The operator of `GradScaler`, which a device refuses with a factor in float64; keeps what it is called with."""

    op = torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default
    _schema, tags = op._schema, op.tags

    def __init__(self) -> None:
        self.given: tuple[Any, ...] = ()

    def __call__(self, *args: Any) -> None:
        self.given = args


def test_the_factor_of_a_loss_scaler_stays_in_float32() -> None:
    """`GradScaler` makes it by way of float64, from which the reference lets nothing return."""
    unscale, found = Unscale(), torch.zeros(1)
    gradients, factor = [torch.ones(3, dtype=torch.float64)], torch.full((1,), 0.5, dtype=torch.float64)
    Arithmetic(torch, "float64", None).run(unscale, (gradients, found, factor), {})
    assert unscale.given[2].dtype == torch.float32
    assert unscale.given[0] is gradients and unscale.given[1] is found, "what it writes is the program's own"


def test_attention_of_plain_operators_stays_allowed_where_a_program_asks_for_flash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Flash attention knows 16-bit formats only, and would find no kernel in a reference."""
    monkeypatch.setattr(torch._C, "_set_sdp_use_math", torch._C._set_sdp_use_math)  # put back after the test
    _with_plain_attention(torch)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        assert torch._C._get_math_sdp_enabled() and torch._C._get_flash_sdp_enabled()
