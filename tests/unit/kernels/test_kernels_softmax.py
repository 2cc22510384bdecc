"""Softmax with scale and mask in one operator: values and gradients, and rows of which nothing is left."""

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
    # The interpreter's arithmetic says where it is inf.
    pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning"),
]

OPERATORS = torch.ops.diagnose


def reference(
    scores: torch.Tensor, mask: torch.Tensor | None = None, scale: float = 1.0, causal: bool = False
) -> torch.Tensor:
    """What is replaced, for rows of which something is left."""
    scores = scores * scale
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    return torch.softmax(scores, -1)


def taking_part(*shape: int, seed: int) -> torch.Tensor:
    """A mask that leaves about half, and each row its first column."""
    mask = drawn(*shape, seed=seed).detach() > 0.0
    mask[..., 0] = True
    return mask


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 1), (5, 33), (2, 3, 7, 70), (2, 1, 2, 3, 9, 5)])
def test_it_is_the_scale_and_the_softmax(causal: bool, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    check(
        partial(kernels.softmax, scale=0.3, causal=causal),
        partial(reference, scale=0.3, causal=causal),
        [drawn(*shape, seed=1, dtype=dtype, scale=5.0)],
        backward_twice=True,
    )


def test_a_single_row() -> None:
    check(kernels.softmax, reference, [drawn(9, seed=2)])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "shape", [(5,), (4, 5), (1, 5), (3, 4, 5), (1, 4, 5), (2, 1, 1, 5), (2, 3, 4, 5), (2, 1, 4, 1), (1,)]
)
def test_masks_broadcast(causal: bool, shape: tuple[int, ...]) -> None:
    """Those that say what takes part, and those that are added; of padding, of positions, of one for all."""
    mask = taking_part(*shape, seed=3)
    added = drawn(*shape, seed=4).detach().masked_fill(~mask, float("-inf"))
    for one in (mask, added):
        check(
            lambda scores, one=one: kernels.softmax(scores, one, 0.5, causal=causal),
            lambda scores, one=one: reference(scores, one, 0.5, causal),
            [drawn(2, 3, 4, 5, seed=5)],
        )


def test_masks_of_more_dimensions() -> None:
    for shape in ((2, 1, 3, 4, 5), (1, 3, 1, 5), (2, 2, 1, 1, 5)):
        mask = taking_part(*shape, seed=6)
        check(
            lambda scores, mask=mask: kernels.softmax(scores, mask),
            lambda scores, mask=mask: reference(scores, mask),
            [drawn(2, 2, 3, 4, 5, seed=7)],
        )


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (3, 1, 5), (5,), (2, 1, 1, 5)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_learned_mask_gets_its_gradient(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """As biases of relative positions are; what broadcast is summed."""
    check(
        lambda scores, bias: kernels.softmax(scores, bias, 0.5),
        lambda scores, bias: reference(scores, bias, 0.5),
        [drawn(2, 3, 4, 5, seed=8, dtype=dtype), drawn(*shape, seed=9, dtype=dtype)],
        backward_twice=True,
    )


@pytest.mark.parametrize("added", [False, True])
def test_a_row_of_which_nothing_is_left_is_zero(added: bool) -> None:
    """Shares and gradients; all others are what they are without it."""
    mask = taking_part(4, 6, seed=10)
    mask[2] = False
    scores = drawn(3, 4, 6, seed=11)
    given = torch.zeros(4, 6, device=DEVICE).masked_fill(~mask, float("-inf")) if added else mask
    found = kernels.softmax(scores, given)
    gradient = torch.autograd.grad(found.square().sum(), scores)[0]
    assert not found[:, 2].any() and not gradient[:, 2].any()
    others = [0, 1, 3]
    expected = reference(scores[:, others], mask[others])
    torch.testing.assert_close(found[:, others], expected)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected.square().sum(), scores)[0])


def test_the_zero_rows_are_those_of_attention_in_torch() -> None:
    mask = taking_part(4, 6, seed=12)
    mask[2] = False
    q, k, v = (drawn(1, 2, length, 8, seed=13 + length).detach() for length in (4, 6, 6))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    torch.testing.assert_close(kernels.softmax(q @ k.mT, mask, 8**-0.5) @ v, expected)


@pytest.mark.parametrize("causal", [False, True])
def test_rows_wider_than_a_program_are_read_twice(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if kernels.backend(DEVICE) == "triton":
        from diagnose.kernels.gpu import masked_softmax

        monkeypatch.setattr(masked_softmax, "WIDEST", 16)
        monkeypatch.setattr(masked_softmax, "BLOCK_OF_WIDER", 16)
    mask = taking_part(1, 5, 77, seed=14)
    mask[0, 3] = False
    mask[0, 3, 70:] = True  # The first blocks of the row are empty.
    check(
        lambda scores: kernels.softmax(scores, None if causal else mask, 0.5, causal=causal),
        lambda scores: reference(scores, None if causal else mask, 0.5, causal),
        [drawn(2, 5, 77, seed=15, scale=5.0)],
    )
    assert not kernels.softmax(drawn(2, 5, 77, seed=16), torch.zeros_like(mask)).any()


def test_large_scores_do_not_overflow() -> None:
    scores = torch.tensor([[1e4, 1e4 - 1.0, -1e4], [-3e38, -3e38, 3e38]], device=DEVICE, requires_grad=True)
    check(kernels.softmax, reference, [scores])


def test_any_layout() -> None:
    transposed = drawn(7, 5, 3, seed=17).detach().permute(2, 1, 0).requires_grad_()
    check(kernels.softmax, reference, [transposed])
    part = drawn(4, 3, 6, 9, seed=18).detach()[:, ::2, 1:5, 2:8].requires_grad_()
    mask = taking_part(4, 12, seed=19)[:, ::2]
    check(
        lambda scores: kernels.softmax(scores, mask, causal=True),
        lambda scores: reference(scores, mask, causal=True),
        [part],
    )


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (2, 0, 3, 4)])
def test_nothing_to_share(shape: tuple[int, ...]) -> None:
    check(kernels.softmax, reference, [drawn(*shape, seed=20)])


def test_offsets_beyond_two_to_the_31() -> None:
    """The third row begins 2³¹ elements after the first; of the memory between, no page is ever used."""
    stride = 1 << 30
    before = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        storage = torch.empty(2 * stride + 16, dtype=torch.bfloat16, device=DEVICE)
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = before  # type: ignore[attr-defined]
    scores = storage.as_strided((3, 16), (stride, 1))
    scores.copy_(drawn(3, 16, seed=21, dtype=torch.bfloat16).detach())
    check(kernels.softmax, reference, [scores.requires_grad_()])


def test_the_dtype_stays_under_autocast() -> None:
    scores = drawn(4, 6, seed=22, dtype=torch.bfloat16)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        assert kernels.softmax(scores, torch.zeros(6, device=DEVICE)).dtype == torch.bfloat16


def test_in_one_compiled_graph() -> None:
    mask = taking_part(4, 5, seed=23)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(scores: torch.Tensor) -> torch.Tensor:
        return kernels.softmax(scores * 2.0, mask, 0.5)

    check(compiled, lambda scores: reference(scores * 2.0, mask, 0.5), [drawn(2, 3, 4, 5, seed=24)])


@pytest.mark.parametrize("causal", [False, True])
def test_the_operators_keep_their_promises(causal: bool) -> None:
    """opcheck: schema, no aliases, no mutation, fake and real shapes alike, autograd registered as it must be."""
    scores = drawn(2, 4, 3, 5, seed=25).detach().transpose(1, 2).requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for mask in (None, taking_part(4, 5, seed=26), drawn(1, 1, 5, seed=27)):
            torch.library.opcheck(OPERATORS.softmax, (scores, mask, 0.5, causal))
        shares = OPERATORS.softmax(scores.detach(), None, 0.5, causal)
        for wide in (False, True):
            torch.library.opcheck(OPERATORS.softmax_backward, (scores.detach(), shares, 0.5, causal, wide))


def test_second_derivatives_are_refused() -> None:
    scores = drawn(4, 7, seed=28)
    gradient = torch.autograd.grad(kernels.softmax(scores).square().sum(), scores, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(gradient.sum(), scores)


def test_what_does_not_fit_is_refused() -> None:
    scores = drawn(4, 7, seed=29)
    with pytest.raises(ValueError, match="does not broadcast"):
        kernels.softmax(scores, taking_part(4, 6, seed=30))
    with pytest.raises(ValueError, match="does not broadcast"):
        kernels.softmax(scores, taking_part(1, 4, 7, seed=31))
    with pytest.raises(TypeError, match="takes part"):
        kernels.softmax(scores, torch.ones(7, dtype=torch.int64, device=DEVICE))
    with pytest.raises(ValueError, match="no rows"):
        kernels.softmax(scores[0], causal=True)
    with pytest.raises(ValueError, match="no rows"):
        kernels.softmax(torch.ones(4, 7, dtype=torch.int64, device=DEVICE))
    with pytest.raises(TypeError, match="is a number"):
        kernels.softmax(drawn(2, 4, seed=1), None, torch.tensor(0.5))  # type: ignore[arg-type]
