"""use-sdpa on programs as people write them: the same outputs and gradients, and look-alikes left alone."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
import torch
from attention import FIXER, FORWARD, HEAD, agrees, rewrite

from diagnose.fixer import Advice, Edits, Gate, example_request

CHANGED = """
class Attention(nn.Module):
    def __init__(self, seen=2):
        super().__init__()
        self.register_buffer("mask", torch.tril(torch.ones(16, 16)))
        self.mask[:seen, :seen] = 1

    def forward(self, q, k, v):
        B, nh, T, hs = q.size()
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(hs))
        att = att.masked_fill(self.mask[:T, :T] == 0, float("-inf"))
        return F.softmax(att, dim=-1) @ v
"""


def test_a_triangle_that_is_changed_is_not_causal() -> None:
    inputs = "Attention()|[torch.randn(2, 3, 5, 4) for _ in range(3)]"
    agrees(CHANGED, inputs, "F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask[:T, :T] != 0)")


LEFT_ALONE = {
    "an added number that leaves nothing of the scores": """
        def attend(q, k, v, keep):
            mask = (~keep).float() * -1e9
            return (q @ k.transpose(-2, -1) + mask[:, None, None, :]).softmax(-1) @ v
        """,
    "an added least number of a format": """
        def attend(q, k, v, keep):
            hidden = (1.0 - keep.to(q.dtype)) * torch.finfo(q.dtype).min
            return (q @ k.transpose(-2, -1) + hidden).softmax(-1) @ v
        """,
    "a part of a given mask, made of such numbers elsewhere": """
        NEG = -1e9

        def mask_of(keep):
            return (~keep).float() * NEG

        def attend(q, k, v, mask):
            return (q @ k.transpose(-2, -1) + mask[:, None, None, :]).softmax(-1) @ v
        """,
    "a number in a string": """
        def attend(q, k, v, keep):
            mask = torch.zeros_like(keep, dtype=q.dtype).masked_fill(~keep, float("-1e9"))
            return (q @ k.transpose(-2, -1) + mask).softmax(-1) @ v
        """,
    "a power": """
        def attend(q, k, v, keep):
            mask = (~keep).float() * (-10 ** 9)
            return (q @ k.transpose(-2, -1) + mask).softmax(-1) @ v
        """,
    "the least number of a format by a name": """
        def attend(q, k, v, keep):
            info = torch.finfo(q.dtype)
            mask = (~keep).to(q.dtype) * info.min
            return (q @ k.transpose(-2, -1) + mask).softmax(-1) @ v
        """,
    "a mask that is given, made of such numbers": """
        def mask_of(keep):
            return keep.float().sub(1.0).mul(1.0) * -1e10 * -1.0

        def attend(q, k, v, mask):
            return (q @ k.transpose(-2, -1) + mask).softmax(-1) @ v
        """,
    "weights returned": """
        def attend(q, k, v):
            attn = (q @ k.transpose(-2, -1) / 2).softmax(-1)
            return attn @ v, attn
        """,
    "weights kept": """
        class Attention(nn.Module):
            def forward(self, q, k, v):
                attn = (q @ k.transpose(-2, -1) / 2).softmax(-1)
                self.last = attn
                return attn @ v
        """,
    "scores kept": """
        def attend(q, k, v, log):
            scores = q @ k.transpose(-2, -1)
            log.append(scores.max())
            return scores.softmax(-1) @ v
        """,
    "softmax over queries": """
        def attend(q, k, v):
            return (q @ k.transpose(-2, -1)).softmax(dim=-2) @ v
        """,
    "scores capped": """
        def attend(q, k, v):
            scores = 30.0 * torch.tanh(q @ k.transpose(-2, -1) / 30.0)
            return scores.softmax(-1) @ v
        """,
    "learned temperature": """
        class Attention(nn.Module):
            def __init__(self):
                super().__init__()
                self.temperature = nn.Parameter(torch.ones(1))

            def forward(self, q, k, v):
                return (q @ k.transpose(-2, -1) * self.temperature).softmax(-1) @ v
        """,
    "fused already, by choice": """
        def attend(q, k, v, flash):
            if flash:
                y = F.scaled_dot_product_attention(q, k, v)
            else:
                att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
                att = F.softmax(att, dim=-1)
                y = att @ v
            return y
        """,
    "a mixture of experts": """
        def mix(gates, outputs):
            return torch.softmax(gates, dim=-1) @ outputs
        """,
    "not masked much": """
        def attend(q, k, v, mask):
            return (q @ k.transpose(-2, -1)).masked_fill(mask, -1.0).softmax(-1) @ v
        """,
    "a mask of whole numbers is added": """
        def attend(q, k, v, mask):
            hidden = (1 - mask) * -10000
            return (q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)) + hidden).softmax(-1) @ v
        """,
    "heads mixed": """
        class Talking(nn.Module):
            def __init__(self):
                super().__init__()
                self.mix = nn.Linear(4, 4)

            def forward(self, q, k, v):
                attn = self.mix(q @ k.transpose(-2, -1)).softmax(-1)
                return attn @ v
        """,
    "keys change": """
        def attend(q, k, v):
            scores = q @ k.transpose(-2, -1)
            k = k + 1
            return scores.softmax(-1) @ v, k
        """,
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_a_fused_kernel_cannot_do_is_left_alone(name: str) -> None:
    assert not isinstance(rewrite(LEFT_ALONE[name]), Edits)


def test_weights_that_are_returned_are_named_as_the_reason() -> None:
    answer = rewrite(LEFT_ALONE["weights returned"])
    assert isinstance(answer, Advice)
    assert "used elsewhere" in answer.text


DROPS = """
class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, q, k, v):
        attn = self.dropout((q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))).softmax(-1))
        return attn @ v
"""


def test_dropout_of_weights_changes_the_training() -> None:
    answer = rewrite(DROPS)
    assert isinstance(answer, Edits)
    assert answer.gate is Gate.TRAINING
    assert "dropout_p=self.dropout.p if self.dropout.training else 0.0" in answer.files["train.py"]


@pytest.mark.parametrize(
    ("settings", "gate"),
    [
        ("class Config:\n    dropout: float = 0.0\n", None),
        ("class Config:\n    dropout: float = 0.0\nconfig = Config(dropout=args.dropout)\n", None),
        ("class Config:\n    dropout: float = 0.0\nconfig = Config(dropout=share())\n", Gate.TRAINING),
        ("class Config:\n    dropout: float = 0.0\nconfig = Config(dropout=0.1)\n", Gate.TRAINING),
    ],
)
def test_a_share_of_dropout_is_zero_only_where_everything_that_sets_it_says_so(
    settings: str, gate: Gate | None
) -> None:
    answer = rewrite(settings + DROPS)
    assert isinstance(answer, Edits)
    assert answer.gate is gate


def test_a_dropout_that_is_set_to_zero_changes_no_training_and_stays_a_setting() -> None:
    answer = rewrite("class Config:\n    dropout: float = 0.0\n" + DROPS)
    assert isinstance(answer, Edits)
    assert answer.gate is None
    assert "dropout_p=self.dropout.p" in answer.files["train.py"]


def test_gaps_around_what_goes_are_closed_whatever_the_line_ends() -> None:
    code = """
        class Attention(nn.Module):
            def __init__(self, dim_head = 4, dropout = 0.):
                super().__init__()
                self.scale = dim_head ** -0.5
                self.attend = nn.Softmax(dim = -1)
                self.dropout = nn.Dropout(dropout)

            def forward(self, q, k, v):
                q = q.contiguous()

                dots = torch.matmul(q, k.transpose(-1, -2)) * self.scale

                attn = self.attend(dots)
                attn = self.dropout(attn)

                out = torch.matmul(attn, v)
                return out
        """
    text = HEAD + textwrap.dedent(code)
    wanted = "    q = q.contiguous()\n\n        out = F.scaled_dot_product_attention(\n            q,\n            k,\n"
    for newline in ("\n", "\r\n"):
        answer = FIXER.rewrite(example_request("unfused-attention", text.replace("\n", newline)))
        assert isinstance(answer, Edits)
        assert wanted.replace("\n", newline) in answer.files["train.py"]


MASKED = """
def attend(q, k, v, {mask}):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
{fill}
    return scores.softmax(-1) @ v
"""


@pytest.mark.parametrize(
    ("mask", "fill"),
    [
        ("hidden", "    scores = scores.masked_fill(hidden, -1e9)"),
        ("hidden", "    scores = scores.masked_fill(hidden, -1e4)"),
        ("hidden", "    scores = torch.where(hidden, torch.finfo(scores.dtype).min, scores)"),
        ("hidden", "    scores = torch.where(~hidden, scores, -1e9)"),
        (
            "hidden",
            "    scores = scores.masked_fill(hidden[:1], -1e9)\n    scores = scores.masked_fill(hidden, -1e9)",
        ),
    ],
)
def test_a_row_of_which_nothing_is_seen_keeps_its_even_weights_and_no_gradient(mask: str, fill: str) -> None:
    hidden = "torch.rand(2, 1, 5, 5).lt(0.4) | (torch.arange(5) == 2)[:, None]"
    agrees(
        MASKED.format(mask=mask, fill=fill), f"attend|[*(torch.randn(2, 3, 5, 4) for _ in range(3)), {hidden}]", FORWARD
    )


def test_masks_of_two_fill_values_are_left_alone() -> None:
    fills = "    scores = scores.masked_fill(a, -1e9)\n    scores = scores.masked_fill(b, -1e4)"
    assert not isinstance(rewrite(MASKED.format(mask="a, b", fill=fills)), Edits)


@pytest.mark.parametrize(
    "keys",
    [
        "k = torch.cat([past, k], dim=2)",
        "if past is not None:\n        k = join(past, k)",
        "k = self.cache[:, :, :end]",
    ],
)
def test_a_causal_mask_over_keys_of_earlier_calls_stays_a_mask(keys: str) -> None:
    answer = rewrite(
        "def attend(self, q, k, v, past, end):\n"
        f"    {keys}\n    mask = torch.tril(torch.ones(q.size(-2), q.size(-2)))\n"
        "    scores = (q @ k.transpose(-2, -1)).masked_fill(mask == 0, float('-inf'))\n"
        "    return scores.softmax(-1) @ v\n"
    )
    assert not isinstance(answer, Edits) or "is_causal" not in answer.files["train.py"]


WIDE = """
def attend(q, k, v):
    att = ({q} @ {k}.transpose(-2, -1)) / q.size(-1) ** 0.5
    return att.softmax(-1){back} @ {v}
"""


def test_scores_made_in_float32_take_queries_and_keys_of_the_values_format() -> None:
    answer = rewrite(WIDE.format(q="q.float()", k="k.to(torch.float32)", v="v", back=".to(v.dtype)"))
    assert isinstance(answer, Edits)
    names: dict[str, Any] = {}
    exec(answer.files["train.py"], names)
    q, k, v = (torch.randn(2, 3, 5, 4).bfloat16() for _ in range(3))
    wanted = ((q.float() @ k.float().mT) / 2).softmax(-1).bfloat16() @ v
    torch.testing.assert_close(names["attend"](q, k, v), wanted, rtol=0.0, atol=0.01)  # 8 bits of numbers about 1


@pytest.mark.parametrize(
    ("q", "k", "v", "back"),
    [
        ("q", "k", "v.float()", ".float()"),
        ("q.float()", "k", "v", ".to(v.dtype)"),
        ("q", "k", "v.double()", ".float()"),
    ],
)
def test_operands_of_several_formats_are_left_alone(q: str, k: str, v: str, back: str) -> None:
    assert isinstance(rewrite(WIDE.format(q=q, k=k, v=v, back=back)), Advice)


@pytest.mark.parametrize(
    "use",
    [
        "penalty = torch.autograd.grad(loss, x, create_graph=True)",
        "hessian = torch.func.hessian(model)(x)",
        "model.dropout.register_forward_hook(keep)",
    ],
)
def test_hooks_and_second_derivatives_keep_what_the_program_wrote(use: str) -> None:
    answer = rewrite(DROPS + f"\n\n{use}\n")
    assert isinstance(answer, Advice)
    assert "train.py:" in answer.text


def test_a_share_that_the_program_sets_later_is_not_taken_for_zero() -> None:
    plain = DROPS.replace("config.dropout", "0.0")
    constant, scheduled = rewrite(plain), rewrite(plain + "\n\nmodel.dropout.p = 0.2\n")
    assert isinstance(constant, Edits)
    assert isinstance(scheduled, Edits)
    assert "dropout_p" not in constant.files["train.py"]
    assert "dropout_p=self.dropout.p" in scheduled.files["train.py"]


@pytest.mark.parametrize(
    ("settings", "factor", "edited"),
    [
        ("class Config:\n    scale: float = 0.125\n", "config.scale", True),
        ("class Options:\n    scale: float = 0.125\n", "options.scale", True),
        ("class Config:\n    scale: torch.Tensor = torch.ones(8, 1, 1)\n", "config.scale", False),
        ("", "config.scale", False),
    ],
)
def test_a_setting_is_a_number_by_what_the_file_does_with_it(settings: str, factor: str, edited: bool) -> None:
    text = (settings + DROPS).replace("/ math.sqrt(q.size(-1))", f"* {factor}")
    assert factor in text
    assert isinstance(rewrite(text), Edits) is edited


HELD = """
class Attention(nn.Module):
    def __init__(self, d=8, heads=2):
        super().__init__()
        self.heads = heads
        self.width = d // heads
        self.scale = self.width ** -0.5
        self.qkv = nn.Linear(d, 3 * d)
        self.drop = nn.Dropout(0.0)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).view(B, N, 3, self.heads, self.width).permute(2, 0, 3, 1, 4)
        weights = ((q @ k.transpose(-2, -1)) * self.scale).softmax(dim=-1)
        return (self.drop(weights) @ v).transpose(1, 2).reshape(B, N, C)

class Reduced(nn.Module):
    def forward(self, weights):
        return weights / 2

model = Attention()
"""


@pytest.mark.parametrize(
    "line",
    [
        "model.scale *= 0.9",
        "model.scale = nn.Parameter(torch.ones(()))",
        "model.drop = Reduced()",
        "setattr(model, 'drop', Reduced())",
        "model.drop, model.other = Reduced(), 1",
    ],
)
def test_a_scale_or_a_dropout_that_is_set_from_outside_is_left_alone(line: str) -> None:
    answer = rewrite(f"{HELD}{line}\n")
    assert isinstance(answer, Advice)
    assert "is set from outside of its class" in answer.text


@pytest.mark.parametrize("line", ["", "model.drop.p = 0.2", "args.drop = 0.5", "self.scale = 3"])
def test_another_attribute_of_the_name_hinders_nothing(line: str) -> None:
    assert isinstance(rewrite(f"{HELD}{line}\n"), Edits)
