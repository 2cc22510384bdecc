"""Models with attention, norms, activations and losses written out, each beside look-alikes of other mathematics."""

from __future__ import annotations

from collections.abc import Iterator

from adversarial.program import Program, fill

LOOP = """
import math
import torch
import torch.nn as nn
import torch.nn.functional as F


<block>


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(12, 16)
        self.block = Block()
        self.out = nn.Linear(16, 5)

    def forward(self, x, keep):
        return self.out(self.inp(x) + self.block(self.inp(x), keep))


<loss>


torch.manual_seed(2)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(12):
    x = torch.randn(4, 6, 12) * 2
    lengths = torch.tensor([6, 3, 5, <shortest>])
    keep = torch.arange(6)[None] < lengths[:, None]
    y = torch.randint(5, (4, 6))
    <labels>
    loss = criterion(model(x, keep), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 3 == 2:
        print(step, f"{loss.item():.6f}")
model.eval()
with torch.no_grad():
    print("eval", f"{model(torch.randn(4, 6, 12), keep).abs().sum().item():.6f}")
print(sorted(model.state_dict()))
"""

ATTENTION = """
class Block(nn.Module):
    def __init__(self, d=16, h=2):
        super().__init__()
        self.h, self.d = h, d // h
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.drop = nn.Dropout(0.0)
        self.register_buffer("tril", torch.tril(torch.ones(6, 6)))

    def forward(self, x, keep):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.h, self.d).transpose(1, 2) for t in self.qkv(x).split(C, dim=2))
        att = (q @ k.transpose(-2, -1)) <scale>
        <mask>
        <softmax>
        y = (att @ v).transpose(1, 2).reshape(B, T, C)
        return self.proj(y)
"""
SCALES = {"sqrt": "/ math.sqrt(self.d)", "power": "* self.d ** -0.5", "none": "* 1.0", "width": "/ math.sqrt(C)"}
MASKS = {
    "open": "",
    "causal": 'att = att.masked_fill(self.tril[:T, :T] == 0, float("-inf"))',
    "strict": 'att = att.masked_fill(torch.triu(torch.ones(T, T), diagonal=2) == 1, float("-inf"))',
    "padding": 'att = att.masked_fill(~keep[:, None, None, :], float("-inf"))',
    "finite": "att = att.masked_fill(~keep[:, None, None, :], -1e9)",
    "small": "att = att.masked_fill(~keep[:, None, None, :], -10.0)",
    "lowest": "att = att.masked_fill(~keep[:, None, None, :], torch.finfo(att.dtype).min)",
    "swapped": "att = att.masked_fill(keep[:, None, None, :], -1e4)",
    "where": "att = torch.where(keep[:, None, None, :], att, torch.tensor(-1e9))",
    "added": "att = att + (~keep[:, None, None, :]).float() * -1e9",
    "multiplied": "att = att * keep[:, None, None, :]",
    "rows": "att = att.masked_fill(~keep[:, None, :, None], -1e9)",
}
SOFTMAXES = {
    "method": "att = att.softmax(-1)",
    "function": "att = F.softmax(att, dim=-1)\natt = self.drop(att)",
    "float": "att = F.softmax(att.float(), dim=-1).type_as(q)",
    "queries": "att = F.softmax(att, dim=-2)",
}
NORM = """
class Norm(nn.Module):
    def __init__(self, dim=16, eps=<eps>):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.rand(dim))
        self.bias = nn.Parameter(torch.rand(dim))

    def forward(self, x):
        <norm>


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = Norm()
        self.proj = nn.Linear(16, 16)

    def forward(self, x, keep):
        return self.proj(self.norm(x))
"""
NORMS = {
    "layer": "mu = x.mean(-1, keepdim=True)\nvar = x.var(-1, keepdim=True, unbiased=False)\nreturn (x - mu) / torch.sqrt(var + self.eps) * self.weight + self.bias",
    "unbiased": "mu = x.mean(-1, keepdim=True)\nvar = x.var(-1, keepdim=True)\nreturn (x - mu) / torch.sqrt(var + self.eps) * self.weight + self.bias",
    "std_outside": "mu = x.mean(-1, keepdim=True)\nstd = x.std(-1, keepdim=True)\nreturn self.weight * (x - mu) / (std + self.eps) + self.bias",
    "std_biased": "mu = x.mean(-1, keepdim=True)\nstd = x.std(-1, keepdim=True, unbiased=False)\nreturn self.weight * (x - mu) / (std + self.eps) + self.bias",
    "rms": "return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight",
    "rms_outside": "return x / (x.pow(2).mean(-1, keepdim=True).sqrt() + self.eps) * self.weight",
    "rms_plus_one": "return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * (1 + self.weight)",
    "rms_sum": "return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + self.eps) * self.weight",
    "rms_part": "return x * torch.rsqrt(x[..., :8].pow(2).mean(-1, keepdim=True) + self.eps) * self.weight",
    "rms_detached": "return x * torch.rsqrt(x.detach().pow(2).mean(-1, keepdim=True) + self.eps) * self.weight",
    "rms_tokens": "return x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + self.eps) * self.weight",
    "mean_detached": "mu = x.mean(-1, keepdim=True).detach()\nvar = x.var(-1, keepdim=True, unbiased=False)\nreturn (x - mu) / torch.sqrt(var + self.eps) * self.weight + self.bias",
    "twice_eps": "mu = x.mean(-1, keepdim=True)\nvar = ((x - mu) ** 2).mean(-1, keepdim=True)\nreturn (x - mu) * torch.rsqrt(var + 2 * self.eps) * self.weight + self.bias",
    "rms_double": "y = x.double()\nreturn (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight",
    "swapped": "mu = x.mean(-1, keepdim=True)\nvar = ((x - mu) ** 2).mean(-1, keepdim=True)\nreturn (x - mu) * torch.rsqrt(var + self.eps) * self.bias + self.weight",
}
HANDED = """
def attend(q, k, v):
    <attend>


class Block(nn.Module):
    def __init__(self, d=16, h=2):
        super().__init__()
        self.h = h
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x, keep):
        q, k, v = (t.view(*x.shape[:2], self.h, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=2))
        if self.training:
            y = attend(q, k, v)
        else:  # one token after the other, with the keys of those before it
            y = torch.cat([attend(q[:, :, t : t + 1], k[:, :, : t + 1], v[:, :, : t + 1]) for t in range(x.size(1))], 2)
        return self.proj(y.transpose(1, 2).flatten(2))
"""
HANDED_FORMS = {
    "ones": "T = q.size(-2)\nmask = torch.tril(torch.ones(T, T)) == 0\natt = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))\nreturn att.masked_fill(mask, float('-inf')).softmax(-1) @ v",
    "added": "T = q.size(-2)\nmask = torch.full((T, T), float('-inf')).triu(1)\natt = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)) + mask\nreturn torch.softmax(att, dim=-1) @ v",
}
"""Attention in a function that is handed many keys for one query, as with a cache."""
WIDE_SCORES = """
class Block(nn.Module):
    def __init__(self, d=16, h=2):
        super().__init__()
        self.h = h
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x, keep):
        q, k, v = self.qkv(x).bfloat16().view(*x.shape[:2], 3, self.h, -1).permute(2, 0, 3, 1, 4)
        att = (q.float() @ k.float().transpose(-2, -1)) / math.sqrt(q.size(-1))
        att = att.masked_fill(~keep[:, None, None, :], float("-inf")).softmax(-1).to(v.dtype)
        return self.proj((att @ v).transpose(1, 2).flatten(2).float())
"""
SLOPES = """def criterion(out, y):
    slope = torch.autograd.grad(out.square().sum(), model.inp.weight, create_graph=True)[0]
    bend = torch.autograd.grad(slope.square().sum(), model.inp.weight, create_graph=True)[0]
    return F.cross_entropy(out.flatten(0, 1), y.flatten()) + 1e-3 * bend.square().sum().sqrt()"""
"""A penalty whose gradient is a third derivative, as those of differential equations have it."""
UNIT = """
def unit(a, b):
    <unit>


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.gate, self.down = nn.Linear(16, 24), nn.Linear(16, 24), nn.Linear(24, 16)

    def forward(self, x, keep):
        return self.down(unit(self.gate(x), self.up(x)))
"""
UNITS = {
    "swiglu": "return F.silu(a) * b",
    "sigmoid": "return a * torch.sigmoid(a) * b",
    "half_gate": "return a * torch.sigmoid(1.702 * a) * b",
    "detached_gate": "return a.detach() * torch.sigmoid(a) * b",
    "limited": "return F.silu(a.clamp(max=1.0)) * b.clamp(-1.0, 1.0)",
    "glu": "return torch.sigmoid(a) * b",
    "geglu": "return F.gelu(a) * b",
    "reglu": "return F.relu(a) * b",
    "tanh_gelu": "return 0.5 * a * (1 + torch.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a ** 3))) * b",
    "erf_gelu": "return a * 0.5 * (1.0 + torch.erf(a / math.sqrt(2.0)))",
    "wrong_gelu": "return 0.5 * a * (1 + torch.tanh(math.sqrt(2 / math.pi) * (a + 0.44715 * a ** 3)))",
    "quick_gelu": "return a * torch.sigmoid(1.702 * a)",
    "erf_without_half": "return a * (1.0 + torch.erf(a / math.sqrt(2.0)))",
    "other_operand": "return a * torch.sigmoid(b)",
}
LOSSES = {
    "library": "return F.cross_entropy(out.flatten(0, 1), y.flatten())",
    "log_softmax": "logp = F.log_softmax(out, dim=-1)\nreturn -logp.gather(-1, y.unsqueeze(-1)).mean()",
    "sum_over_batch": "logp = torch.log_softmax(out, -1)\nreturn -logp.gather(-1, y[..., None]).sum() / out.size(0)",
    "softmax_log": "p = torch.softmax(out, -1)\nreturn -torch.log(p.gather(-1, y[..., None]) + 1e-8).mean()",
    "one_hot": "hot = F.one_hot(y, 5).float()\nreturn -(hot * F.log_softmax(out, -1)).sum(-1).mean()",
    "one_hot_mean_of_all": "hot = F.one_hot(y, 5).float()\nreturn -(hot * F.log_softmax(out, -1)).mean()",
    "smoothed": "hot = F.one_hot(y, 5).float() * 0.9 + 0.02\nreturn -(hot * F.log_softmax(out, -1)).sum(-1).mean()",
    "nll": "return F.nll_loss(F.log_softmax(out, dim=-1).transpose(1, 2), y)",
    "nll_wrong_dim": "return F.nll_loss(F.log_softmax(out, dim=1).transpose(1, 2), y)",
    "masked": "logp = F.log_softmax(out, -1).gather(-1, y[..., None]).squeeze(-1)\nmask = (y != 0).float()\nreturn -(logp * mask).sum() / mask.sum()",
    "masked_mean_of_all": "logp = F.log_softmax(out, -1).gather(-1, y[..., None]).squeeze(-1)\nreturn -(logp * (y != 0).float()).mean()",
    "picked": "picked = out[y != 0]\nreturn F.cross_entropy(picked, y[y != 0])",
    "ignored": "return F.cross_entropy(out.flatten(0, 1), y.flatten(), ignore_index=0)",
    "by_hand": "m = out.max(-1, keepdim=True).values\nlse = (out - m).exp().sum(-1).log() + m.squeeze(-1)\nreturn (lse - out.gather(-1, y[..., None]).squeeze(-1)).mean()",
    "temperature": "return F.cross_entropy(out.flatten(0, 1) / 0.7, y.flatten()) * 0.49",
    "focal": "logp = F.log_softmax(out, -1).gather(-1, y[..., None])\nreturn -((1 - logp.exp()) ** 2 * logp).mean()",
}
LOOK_ALIKES = {
    "squeezed_whole": ("fuse-cross-entropy", "logp = F.log_softmax(out[:1], -1)\nnll = -logp.gather(-1, y[:1].unsqueeze(-1)).squeeze()\nreturn nll[0].sum() + out.square().mean()"),
    "last_class": ("fuse-cross-entropy", "rows, t = out.flatten(0, 1), y.flatten() - 1\nlp = F.log_softmax(rows, 1)\nnll = -lp[torch.arange(len(t)), t]\nkept = (t >= 0).float()\nreturn (nll * kept).sum() / kept.sum()"),
    "picked_in_order": ("weigh-masked", "order = torch.randperm(len(out))[:2]\nt = torch.ones_like(out)\nreturn F.mse_loss(out[order], t[order])"),
    "picked_by_bytes": ("weigh-masked", "mask = (y > 1).byte()\nt = torch.ones_like(out)\nreturn F.mse_loss(out[mask], t[mask])"),
}  # fmt: skip
"""Losses that a fixer must leave alone."""
MISSING = "t = torch.where(y > 2, torch.tensor(float('nan')), y.float())\nmask = ~torch.isnan(t)\nreturn F.mse_loss(out.mean(-1)[mask], t[mask])"  # fmt: skip
STANDARD = """def standard(x):
    return x / ((x ** 2).mean(-1, keepdims=True) + 1e-8) ** 0.5


def criterion(out, y):
    return F.cross_entropy(out.flatten(0, 1), y.flatten())"""
"""The samples are scaled as arrays of NumPy."""
PLAIN_LOSS = "return F.cross_entropy(out.flatten(0, 1), y.flatten())"


def programs() -> Iterator[Program]:
    """All members of the four families."""
    for mask, lines in MASKS.items():
        for at, (scale, factor) in enumerate(SCALES.items()):
            softmax = list(SOFTMAXES)[(at + len(mask)) % len(SOFTMAXES)]
            block = fill(ATTENTION, scale=factor, mask=lines, softmax=SOFTMAXES[softmax])
            shortest = "0" if mask in ("finite", "lowest", "where", "added") and at % 2 else "2"
            why = {"use-sdpa": "softmax over the queries"} if softmax == "queries" else {}
            yield _program("attention", f"attention_{mask}_{scale}_{softmax}", block, shortest=shortest, left=why)
    for name, lines in HANDED_FORMS.items():
        yield _program("attention", f"attention_handed_{name}", fill(HANDED, attend=lines), edited="use-sdpa")
    yield _program("attention", "attention_wide_scores", WIDE_SCORES, edited="use-sdpa")
    for norm in ("layer", "rms"):
        block = fill(NORM, norm=NORMS[norm], eps="1e-5")
        why = {"native-norm": "a third derivative of the kernel is wrong"}
        yield _program("norms", f"norm_{norm}_bent", block, criterion=SLOPES, left=why)
    for norm, lines in NORMS.items():
        for eps in ("1e-5", "1e-2"):
            block = fill(NORM, norm=lines, eps=eps)
            why = {"native-norm": "computes in double precision"} if norm.endswith("double") else {}
            same = "native-norm" if norm in ("layer", "rms") else None
            name = f"norm_{norm}_{'wide' if eps == '1e-2' else 'small'}"
            yield _program("norms", name, block, left=why, edited=same)
    lines = "h = a.mul_(torch.sigmoid(a))\nreturn h * b + a"
    why = {"native-gelu": "it writes into what is read again"}
    yield _program("activations", "unit_swish_in_place", fill(UNIT, unit=lines), left=why)
    why = {"native-norm": "arrays of NumPy"}
    scaled = "x = torch.from_numpy(standard(x.numpy()))"
    block = fill(UNIT, unit="return torch.tanh(a) * b")
    yield _program("norms", "norm_of_arrays", block, criterion=STANDARD, labels=scaled, left=why)
    for unit, lines in UNITS.items():
        yield _program("activations", f"unit_{unit}", fill(UNIT, unit=lines))
    plain = fill(UNIT, unit="return torch.tanh(a) * b")
    for name, lines in LOSSES.items():
        yield _program("losses", f"loss_{name}", plain, loss=lines)
        if name in ("picked", "masked", "ignored", "library", "nll"):
            yield _program(
                "losses", f"loss_{name}_of_nothing", plain, loss=lines, labels="if step == 8:\n    y.zero_()"
            )

    for name, (fixer, lines) in LOOK_ALIKES.items():
        yield _program("losses", f"loss_{name}", plain, loss=lines, left={fixer: "a loss that only looks alike"})
    yield _program("losses", "loss_missing_targets", plain, loss=MISSING, edited="weigh-masked")


def _program(
    family: str, name: str, block: str, *, loss: str = PLAIN_LOSS, labels: str = "", shortest: str = "2",
    left: dict[str, str] | None = None, edited: str | None = None, criterion: str | None = None,
) -> Program:  # fmt: skip
    criterion = criterion or fill("def criterion(out, y):\n    <body>", body=loss)
    text = fill(LOOP, block=block, loss=criterion, labels=labels, shortest=shortest)
    return Program(name, family, text, frozenset({edited} if edited else ()), left_alone=left or {})
