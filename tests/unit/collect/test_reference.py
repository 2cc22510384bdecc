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


@pytest.mark.parametrize("wide", ["float64", "float32"])
def test_operands_are_rounded_to_the_nearest_number_of_the_format_and_of_two_to_the_even_one(wide: str) -> None:
    dtype, one = getattr(torch, wide), torch.eye(6, dtype=getattr(torch, wide))
    unit = 2.0**-10  # of TF32 at 1
    given = [1.0, 1 + 0.49 * unit, 1 + 0.5 * unit, 1 + 1.5 * unit, -(1 + 2.5 * unit), 3e-30 * (1 + 0.51 * unit)]
    expected = [1.0, 1.0, 1.0, 1 + 2 * unit, -(1 + 2 * unit), None]
    found = Arithmetic(torch, wide, 10).run(torch.ops.aten.mm.default, (torch.tensor([given], dtype=dtype), one), {})
    assert found[0, :-1].tolist() == expected[:-1]
    assert abs(found[0, -1].item() / 3e-30 - 1) < unit / 2 * 1.01


def test_what_is_not_finite_stays_so_in_an_operand() -> None:
    given = torch.tensor([[float("inf")], [-float("inf")], [float("nan")]], dtype=torch.float64)
    one = torch.ones(1, 1, dtype=torch.float64)
    found = Arithmetic(torch, "float64", 7).run(torch.ops.aten.mm.default, (given, one), {})
    assert torch.equal(found.isposinf(), given.isposinf()) and torch.equal(found.isnan(), given.isnan())


def test_other_floating_inputs_and_formats_that_are_asked_for_become_wide() -> None:
    arithmetic, wide = Arithmetic(torch, "float64", None), torch.ones(2, dtype=torch.float64)
    mixed = arithmetic.run(torch.ops.aten.add.Tensor, (wide, torch.full((2,), 0.5)), {})
    summed = arithmetic.run(torch.ops.aten.sum.default, (wide,), {"dtype": torch.bfloat16})
    narrow = arithmetic.run(torch.ops.aten.add.Tensor, (torch.ones(2), torch.ones(2)), {})
    assert (mixed.dtype, summed.dtype, narrow.dtype) == (torch.float64, torch.float64, torch.float32)
