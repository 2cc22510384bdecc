"""Rotary embedding of queries and keys in one operator: values and gradients, in either layout and either pairing."""

from __future__ import annotations

import warnings
from functools import partial

import pytest
import torch
from kernel_checks import DEVICE, check, drawn, implementation, poisoned

from diagnose import kernels

__all__ = ["implementation", "poisoned"]
# Poisoned memory comes with deterministic algorithms, and devices do not have all of them.
pytestmark = [
    pytest.mark.usefixtures("implementation"),
    pytest.mark.filterwarnings("ignore:.*deterministic.*:UserWarning"),
]

OPERATORS = torch.ops.diagnose


def turned(x: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """A quarter turn of each pair, as programs write it."""
    if interleaved:
        return torch.stack((-x[..., 1::2], x[..., 0::2]), -1).flatten(-2)
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def reference(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """What is replaced: angles for whole rows."""
    if cos.shape[-1] != q.shape[-1]:
        cos, sin = (
            part.repeat_interleave(2, -1) if interleaved else torch.cat((part, part), -1) for part in (cos, sin)
        )
    return q * cos + turned(q, interleaved) * sin, k * cos + turned(k, interleaved) * sin


def angles(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    """cos and sin of fresh angles, which no gradient is wanted for."""
    values = drawn(*shape, seed=seed).detach() * 3.0
    return [values.cos().to(dtype), values.sin().to(dtype)]


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("part", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_heads_before_tokens(interleaved: bool, part: int, dtype: torch.dtype) -> None:
    """As Hugging Face's models have it: fewer key heads than query heads, angles of whole rows or of half of them."""
    check(
        partial(kernels.rotary, interleaved=interleaved),
        partial(reference, interleaved=interleaved),
        [
            drawn(2, 6, 5, 12, seed=1, dtype=dtype),
            drawn(2, 3, 5, 12, seed=2, dtype=dtype),
            *angles(2, 1, 5, 12 // part, seed=3, dtype=dtype),
        ],
        backward_twice=True,
    )


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("shape", [(1, 7, 1, 8), (7, 1, 8), (2, 7, 1, 4)])
def test_tokens_before_heads(interleaved: bool, shape: tuple[int, ...]) -> None:
    """As flash attention wants it; angles for all sequences or for each."""
    check(
        partial(kernels.rotary, interleaved=interleaved),
        partial(reference, interleaved=interleaved),
        [drawn(2, 7, 4, 8, seed=4), drawn(2, 7, 1, 8, seed=5), *angles(*shape, seed=6)],
    )


@pytest.mark.parametrize("shape", [(8,), (5, 8), (3, 1, 5, 8), (1, 1, 1, 4), (3, 4, 5, 8)])
def test_angles_broadcast(shape: tuple[int, ...]) -> None:
    """Down to one angle for all tokens, and up to one for each head."""
    check(kernels.rotary, reference, [drawn(3, 4, 5, 8, seed=7), drawn(3, 4, 5, 8, seed=8), *angles(*shape, seed=9)])


@pytest.mark.parametrize("shape", [(6,), (5, 6), (5, 3, 6), (2, 2, 3, 5, 6)])
def test_any_number_of_dimensions(shape: tuple[int, ...]) -> None:
    check(
        kernels.rotary, reference, [drawn(*shape, seed=10), drawn(*shape, seed=11), *angles(*shape[-2:-1], 6, seed=12)]
        if len(shape) != 3
        else [drawn(*shape, seed=10), drawn(*shape, seed=11), *angles(5, 1, 6, seed=12)],
    )  # fmt: skip


def test_parts_of_one_projection_are_read_as_they_lie() -> None:
    """Results have the layout that the next operator would have seen."""

    def split(fused: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q, k = fused.view(2, 5, 9, 8).tensor_split((6,), dim=2)
        return q.transpose(1, 2), k.transpose(1, 2)

    cos, sin = angles(5, 8, seed=13)
    check(
        lambda fused: kernels.rotary(*split(fused), cos, sin),
        lambda fused: reference(*split(fused), cos.double(), sin.double()),
        [drawn(2, 5, 72, seed=14)],
    )
    q = drawn(2, 5, 6, 8, seed=15).transpose(1, 2)
    assert kernels.rotary(q, q, cos, sin)[0].stride() == q.stride()


def test_angles_of_complex_numbers_are_read_as_they_lie() -> None:
    """Llama's `view_as_complex` form: neighbours are rotated, cos and sin lie one beside the other."""
    turns = torch.polar(torch.ones(5, 4, device=DEVICE), drawn(5, 4, seed=16, dtype=torch.float32).detach())
    q, k = drawn(2, 5, 3, 8, seed=17, dtype=torch.float32), drawn(2, 5, 3, 8, seed=18, dtype=torch.float32)

    def written(x: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns[None, :, None]).flatten(3)

    found = kernels.rotary(q, k, turns.real[:, None], turns.imag[:, None], interleaved=True)
    for ours, theirs in zip(found, (written(q), written(k)), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_columns_apart_in_memory() -> None:
    q = drawn(8, 2, 3, 5, seed=19).detach().permute(1, 2, 3, 0).requires_grad_()
    check(kernels.rotary, reference, [q, drawn(2, 3, 5, 8, seed=20), *angles(5, 8, seed=21)])


@pytest.mark.parametrize("shape", [(2, 4, 0, 8), (0, 4, 3, 8), (2, 0, 3, 8)])
def test_nothing_to_rotate(shape: tuple[int, ...]) -> None:
    check(kernels.rotary, reference, [drawn(*shape, seed=22), drawn(*shape, seed=23), *angles(shape[2], 8, seed=24)])


def test_heads_of_one_alone() -> None:
    """Without keys: queries are rotated all the same."""
    cos, sin = angles(3, 8, seed=25)
    q, none = drawn(2, 4, 3, 8, seed=26), drawn(2, 0, 3, 8, seed=27)
    check(lambda q: kernels.rotary(q, none, cos, sin)[0], lambda q: reference(q, q, cos, sin)[0], [q])


@pytest.mark.parametrize("used", [0, 1])
def test_either_output_alone(used: int) -> None:
    cos, sin = angles(3, 4, seed=28)
    q, k = drawn(2, 4, 3, 8, seed=29), drawn(2, 4, 3, 8, seed=30)
    found = torch.autograd.grad(kernels.rotary(q, k, cos, sin)[used].square().sum(), (q, k)[used])[0]
    close_to = 2.0 * (q, k)[used]
    assert torch.equal(found.isnan(), close_to.isnan())
    torch.testing.assert_close(found, close_to)  # a rotation keeps lengths


def test_offsets_beyond_two_to_the_31() -> None:
    """The third token begins 2³¹ elements after the first; of the memory between, no page is ever used."""
    stride = 1 << 30
    before = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        storage = torch.empty(2 * stride + 16, dtype=torch.bfloat16, device=DEVICE)
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = before  # type: ignore[attr-defined]
    q = storage.as_strided((1, 2, 3, 8), (0, 8, stride, 1))
    q.copy_(drawn(1, 2, 3, 8, seed=31, dtype=torch.bfloat16).detach())
    cos, sin = angles(3, 8, seed=32)
    found = kernels.rotary(q[:, :1].requires_grad_(), drawn(1, 1, 3, 8, seed=33, dtype=torch.bfloat16), cos, sin)[0]
    expected = reference(q[:, :1].double(), q[:, :1].double(), cos.double(), sin.double())[0]
    torch.testing.assert_close(found.double(), expected, rtol=0.02, atol=0.02)


def test_angles_in_another_dtype_change_no_result_dtype() -> None:
    q, k = drawn(2, 4, 3, 8, seed=34, dtype=torch.bfloat16), drawn(2, 2, 3, 8, seed=35, dtype=torch.float16)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        new_q, new_k = kernels.rotary(q, k, *angles(3, 8, seed=36, dtype=torch.float32))
    assert (new_q.dtype, new_k.dtype) == (torch.bfloat16, torch.float16)
    check(kernels.rotary, reference, [q, k, *angles(3, 8, seed=36, dtype=torch.float32)])


def test_learned_angles_get_their_gradients() -> None:
    cos, sin = drawn(3, 8, seed=37), drawn(3, 8, seed=38)
    check(kernels.rotary, reference, [drawn(2, 4, 3, 8, seed=39), drawn(2, 4, 3, 8, seed=40), cos, sin])


def test_second_derivatives_are_rotations_too() -> None:
    cos, sin = angles(3, 8, seed=41)
    q, k = drawn(1, 2, 3, 8, seed=42), drawn(1, 2, 3, 8, seed=43)
    assert torch.autograd.gradgradcheck(lambda q, k: kernels.rotary(q, k, cos, sin), (q, k))


def test_in_one_compiled_graph() -> None:
    cos, sin = angles(4, 8, seed=44)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return kernels.rotary((q * 2.0).transpose(1, 2), (k * 2.0).transpose(1, 2), cos, sin)

    check(
        compiled,
        lambda q, k: reference((q * 2.0).transpose(1, 2), (k * 2.0).transpose(1, 2), cos.double(), sin.double()),
        [drawn(3, 4, 6, 8, seed=45), drawn(3, 4, 2, 8, seed=46)],
    )


def test_in_one_compiled_graph_of_sequences_of_any_length() -> None:
    @torch.compile(fullgraph=True, backend="aot_eager", dynamic=True)
    def compiled(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return kernels.rotary(q * 2.0, k * 2.0, cos, sin)

    for tokens in (4, 6):
        cos, sin = angles(tokens, 8, seed=55)
        check(
            lambda q, k, cos=cos, sin=sin: compiled(q, k, cos, sin),
            lambda q, k, cos=cos, sin=sin: reference(q * 2.0, k * 2.0, cos.double(), sin.double()),
            [drawn(3, 4, tokens, 8, seed=56), drawn(3, 2, tokens, 8, seed=57)],
        )


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("back", [False, True])
def test_the_operator_keeps_its_promises(interleaved: bool, back: bool) -> None:
    """opcheck: schema, no aliases, no mutation, fake and real shapes alike, autograd registered as it must be."""
    cos, sin = (part[:, :, None] for part in angles(1, 5, 8, seed=47))
    q = drawn(2, 4, 5, 8, seed=48).detach().transpose(1, 2).requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.library.opcheck(OPERATORS.rotary, (q, drawn(2, 5, 2, 8, seed=49), cos, sin, 2, interleaved, back))
        # A part of a wider tensor.
        part = drawn(2, 5, 6, 8, seed=50).detach()[:, :, :4].requires_grad_()
        torch.library.opcheck(OPERATORS.rotary, (part, part[:, :, :1], cos, sin, 2, interleaved, back))
        heads_first = drawn(2, 4, 5, 8, seed=54)
        of_heads = [angle.transpose(1, 2) for angle in (cos, sin)]
        torch.library.opcheck(OPERATORS.rotary, (heads_first, heads_first[:, :2], *of_heads, 1, interleaved, back))


def test_what_does_not_fit_is_refused() -> None:
    q, k, (cos, sin) = drawn(2, 4, 3, 8, seed=51), drawn(2, 4, 3, 8, seed=52), angles(3, 8, seed=53)
    with pytest.raises(ValueError, match="one even width"):
        kernels.rotary(q, k[..., :6], cos, sin)
    with pytest.raises(ValueError, match="one even width"):
        kernels.rotary(q[..., :7], k[..., :7], cos[..., :7], sin[..., :7])
    with pytest.raises(ValueError, match="do not rotate"):
        kernels.rotary(q, k, cos, sin[:2])
    with pytest.raises(ValueError, match="do not rotate"):
        kernels.rotary(q, k, cos[:, :2], sin[:, :2])
    with pytest.raises(ValueError, match="does not broadcast"):
        kernels.rotary(q, k, *angles(5, 8, seed=54))
    with pytest.raises(ValueError, match="does not broadcast"):
        kernels.rotary(q[:, :, :1], k[:, :, :1], cos, sin)
