"""The fused kernels where torch's own operators are taken instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from diagnose import kernels
from diagnose.kernels import gated_unit, residual_layer_norm, residual_norm

X, RESIDUAL, WEIGHT, BIAS = (torch.randn(5, 12), torch.randn(5, 12), torch.randn(12), torch.randn(12))


@pytest.mark.parametrize(
    ("call", "inputs"),
    [
        (kernels.swiglu, (X, RESIDUAL)),
        (kernels.geglu, (X, RESIDUAL)),
        (lambda gate, up: kernels.geglu(gate, up, "tanh"), (X, RESIDUAL)),
        (kernels.add_rms_norm, (X, RESIDUAL, WEIGHT)),
        (kernels.add_rms_norm, (X, RESIDUAL)),
        (kernels.add_layer_norm, (X, RESIDUAL, WEIGHT, BIAS)),
    ],
)
@pytest.mark.parametrize("autocast", [False, True])
def test_torchs_own_operators_compute_the_same(
    call: Callable[..., Any], inputs: tuple[torch.Tensor, ...], autocast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they are taken instead: values, gradients and dtypes, under autocast too."""

    def computed(pays: bool) -> list[torch.Tensor]:
        asked = []

        def answer(name: str, *_: object) -> bool:
            asked.append(name)
            return pays

        for module in (gated_unit, residual_norm, residual_layer_norm):
            monkeypatch.setattr(module, "fused_pays", answer)
        fresh = [tensor.detach().clone().requires_grad_() for tensor in inputs]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            found = call(*fresh)
        assert len(asked) == 1
        outputs = found if isinstance(found, tuple) else (found,)
        return [*outputs, *torch.autograd.grad(outputs, fresh, [output.detach().sin() for output in outputs])]

    for fused, native in zip(computed(True), computed(False), strict=True):
        assert fused.dtype == native.dtype
        assert torch.allclose(fused, native, rtol=1e-4, atol=1e-5)
