"""Gradients reduced by hand: what `DistributedDataParallel` wraps, and what still gets the model itself."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from on_two_ranks import run_on_two_ranks
from rank_programs import BY_HAND, HEAD, advised
from rewriting import FIXERS, rewritten

from diagnose.fixer import Edits, Gate, example_request

IN_A_CLASS = (
    HEAD
    + '''
dist.init_process_group("gloo")


class Trainer:
	"""Tabs, and the model as an attribute."""

	def __init__(self, lr: float) -> None:
		torch.manual_seed(0)
		self.net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 1))
		self.optimizer = torch.optim.SGD(self.net.parameters(), lr)

	def fit(self, steps: int) -> list[float]:
		losses = []
		for _ in range(steps):
			self.optimizer.zero_grad()
			loss = self.net(torch.randn(4, 8)).square().mean()
			loss.backward()
			for parameter in self.net.parameters():
				dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
				parameter.grad.div_(dist.get_world_size())
			self.optimizer.step()
			losses.append(loss.item())
		return losses

	def saved(self):
		return self.net.state_dict()


trainer = Trainer(0.1)
torch.manual_seed(1 + dist.get_rank())
losses = trainer.fit(5)
names = sorted(trainer.saved())
weights = [value.double().sum().item() for value in trainer.saved().values()]
'''
)
TABS = (
    HEAD
    + """
dist.init_process_group("gloo")


class Trainer:
	def __init__(self, net: nn.Module, every: int = 3) -> None:
		self.net = DDP(net)
		self.every = every
		self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

	def fit(self, loader) -> list[float]:
		losses = []
		for i, x in enumerate(loader):
			# one micro-step
			with torch.autocast("cpu", enabled=False):
				loss = self.net(
					x,  # rows
				).square().mean()
			(loss / self.every).backward()
			losses.append(loss.item())
			if (i + 1) % self.every == 0 or i + 1 == len(loader):
				self.optimizer.step()
				self.optimizer.zero_grad()
		return losses


torch.manual_seed(0)
trainer = Trainer(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
torch.manual_seed(1 + dist.get_rank())
losses = trainer.fit([torch.randn(4, 8) for _ in range(8)])
names = []
weights = [parameter.double().sum().item() for parameter in trainer.net.parameters()]
"""
)


def test_what_one_rank_runs_alone_makes_no_rank_wait(tmp_path: Path) -> None:
    """Also where batch norms have buffers, which a wrapper would send before every forward pass."""
    programs = {"use-ddp": (BY_HAND, IN_A_CLASS), "no-sync": (TABS,)}
    pairs = [(text, rewritten(name, text)) for name, texts in programs.items() for text in texts]
    assert all(after is not None for _, after in pairs)
    texts = [text for pair in pairs for text in pair if text is not None]
    for numbers in run_on_two_ranks(texts, tmp_path, ["losses", "weights", "names"]):
        for before, after in zip(numbers[::2], numbers[1::2], strict=True):
            assert after[:2] == [pytest.approx(each, rel=1e-5, abs=1e-6) for each in before[:2]]
            assert after[2] == before[2]


TWO_MODELS = (
    HEAD
    + """dist.init_process_group("nccl")
torch.manual_seed(0)
encoder, decoder = Encoder().cuda(), Decoder().cuda()
for x, y in loader:
    criterion({loss}, y).backward()
    for p in encoder.parameters():
        dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
    optimizer.step()
"""
)


def test_only_the_gradients_of_the_model_that_is_wrapped_are_no_longer_reduced_by_hand() -> None:
    assert rewritten("use-ddp", TWO_MODELS.replace("{loss}", "encoder(x)")) is not None
    assert "not the gradients of `decoder`" in advised("use-ddp", TWO_MODELS.replace("{loss}", "decoder(encoder(x))"))
    beside = TWO_MODELS.replace("{loss}", "encoder(x) + encoder.prior(x)")
    assert "more of the model than its forward" in advised("use-ddp", beside)


@pytest.mark.parametrize(
    "branch",
    [
        'if task == "a":\n            return self.first(x)',
        "if task is not None:\n            x = self.first(task)",
        "x = self.first(x) if task else x",
        "x = self.heads[task](x)",
        "x = getattr(self, f'head_{task}')(x)",
        "for layer in self.layers[:task]:\n            x = layer(x)",
        "for one in task:\n            x = self.heads[one](x)",
        "expert = self.gate(x).argmax().item()\n        x = self.experts[expert](x)",
    ],
)
def test_parameters_that_only_some_inputs_use_are_still_searched_for(branch: str) -> None:
    text = (
        HEAD
        + "class Net(nn.Module):\n    def forward(self, x, task=None):\n        {}\n        return self.last(x)\n\n\n"
    )
    text += "model = DDP(Net(), find_unused_parameters=True)\n"
    assert "may be needed" in advised("ddp-all-used", text.replace("{}", branch))
    for same in (
        "if task is not None:\n            self.loss_fn(x, task)",
        "x = self.last(x) if task else x",
        "for i in range(len(self.layers)):\n            x = self.layers[i](x)",
        "x = self.layers[0](x[task])",
    ):
        assert rewritten("ddp-all-used", text.replace("{}", same)) is not None


SWITCHED = (
    HEAD + "class Net(nn.Module):\n    wide = True\n\n    def __init__(self):\n        super().__init__()\n"
    "        self.wide = True\n        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)\n\n"
    "    def narrow(self):\n        for p in self.first.parameters():\n            p.requires_grad = False\n\n"
    "    def forward(self, x):\n        {forward}\n        return self.last(x)\n\n\n"
    "net = Net()\n{before}\nmodel = DDP(net, find_unused_parameters=True)\nfor epoch in range(9):\n"
    "    for x in loader:\n        model(x).mean().backward()\n    {later}\n"
)


@pytest.mark.parametrize(
    ("forward", "before", "later", "advice"),
    [
        ("if self.wide:\n            x = self.first(x)", "", "net.wide = epoch < 4", "may be needed"),
        ("x = self.first(x) if self.wide else x", "", "net.wide, seen = False, 1", "may be needed"),
        ("x = self.first(x) if self.wide else x", "", "setattr(net, 'wide', False)", "may be needed"),
        ("with torch.set_grad_enabled(self.wide):\n            x = self.first(x)", "", "net.wide = 0", "may be needed"),
        ("x = self.way(x)", "", "net.way = net.last", "may be needed"),
        ("x = self.first(x)", "", "net.first.requires_grad_(epoch < 4)", "freezes parameters"),
        ("x = self.first(x)", "", "if epoch == 4:\n        net.narrow()", "freezes parameters"),
        ("x = self.first(x)", "", "for p in net.parameters():\n        p.requires_grad = False", "freezes parameters"),
        ("x = self.first(x)", "net.narrow()", "print(epoch)", None),
        ("x = self.first(x)", "net.first.requires_grad_(False)", "net.first.requires_grad_(True)", None),
        ("x = self.first(x) if self.wide else x", "", "print(net.wide)", None),
    ],
)
def test_parameters_that_a_switch_or_a_freeze_leaves_out_later_are_still_searched_for(
    forward: str, before: str, later: str, advice: str | None
) -> None:
    text = SWITCHED.format(forward=forward, before=before, later=later)
    if advice is None:
        assert rewritten("ddp-all-used", text) is not None
    else:
        assert advice in advised("ddp-all-used", text)


def test_where_there_may_be_no_wrapper_it_is_asked_for() -> None:
    step = "for step in range(9):\n    for k in range(4):\n        model(x).mean().backward()\n    optimizer.step()\n"
    either = HEAD + "model = DDP(net) if several else net\n" + step
    assert 'if not hasattr(model, "no_sync") or k == 3 else' in (rewritten("no-sync", either) or "")
    given = (
        HEAD
        + "def run(model, optimizer):\n"
        + textwrap.indent(step, "    ")
        + "\n\nmodel = DDP(net)\nrun(model, sgd)\n"
    )
    assert "if k == 3 else" in (rewritten("no-sync", given) or "")
    assert "hasattr" in (rewritten("no-sync", given + "run(model.module, None)\n") or "")


@pytest.mark.parametrize(
    "writes",
    [
        "torch.add(self.seen, 1, out=self.seen)",
        "self.count(x, self.seen)",
        "self.seen.data.mul_(0.9)",
        "grow(self.seen)",
        "dist.all_reduce(self.seen)",
    ],
)
def test_buffers_that_are_written_to_by_others_are_not_promised_to_stay(writes: str) -> None:
    text = (
        HEAD + "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        '        self.register_buffer("seen", torch.zeros(1))\n\n    def forward(self, x):\n'
        "        {}\n        return x * self.seen\n\n\nmodel = DDP(Net())\n"
        "\n\ndef grow(count):\n    count.add_(1)\n\n\ndef look(count):\n    return count + 1\n"
    )
    gates = [
        FIXERS["no-buffer-broadcast"].rewrite(example_request("as-found", text.replace("{}", line)))
        for line in ("x = x + look(self.seen)", writes)
    ]
    assert [answer.gate for answer in gates if isinstance(answer, Edits)] == [Gate.BITWISE, Gate.TRAINING]


def test_the_model_itself_is_asked_for_what_only_it_has() -> None:
    text = rewritten("use-ddp", BY_HAND) or ""
    options = "broadcast_buffers=False, find_unused_parameters=True"
    assert f"net = torch.nn.parallel.DistributedDataParallel(net, {options})\nbody = " in text
    for line in ("in net.module.named_parameters()", "evaluate(net.module)", "named(net.module)", "net.module(torch"):
        assert line in text
    assert "    loss = net(torch.randn(4, 8))" in text
    assert "self.net.module.state_dict()" in (rewritten("use-ddp", IN_A_CLASS) or "")


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        ("print(net)", "print(net.module)"),
        ("import copy\nbest = copy.deepcopy(net)", "best = copy.deepcopy(net.module)"),
        ("print(len(net), net[0].weight.sum())", "print(len(net.module), net.module[0].weight.sum())"),
        ("sizes = [len(list(layer.parameters())) for layer in net]", "for layer in net.module]"),
        ('told = f"{net}"', 'told = f"{net.module}"'),
        ("if isinstance(net, nn.Sequential):\n    print(1)", "if isinstance(net.module, nn.Sequential):"),
        ("raw = net", None),
        ("parts = {'net': net}", None),
        ("average = Average(net)", None),
        ("net, sampler = prepare(net, sampler)", None),
    ],
)
def test_what_copies_prints_or_indexes_the_model_gets_the_model(line: str, becomes: str | None) -> None:
    text = BY_HAND.replace("names = named(net)\n", f"names = named(net)\n{line}\n")
    if becomes is None:
        assert "in a way that the wrapper does not have" in advised("use-ddp", text)
    else:
        assert becomes in (rewritten("use-ddp", text) or "")


def test_a_parameter_of_the_models_name_is_another_variable() -> None:
    text = BY_HAND.replace("names = named(net)", "names = named(net=net)")
    patched = rewritten("use-ddp", text) or ""
    assert "return sorted(net.state_dict())" in patched
    assert "named(net=net.module)" in patched
