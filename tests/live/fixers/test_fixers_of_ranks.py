"""No fix lets one rank wait for another, apply other gradients, or keep other weights than the program's own does."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from on_two_ranks import run_on_two_ranks
from rewriting import FIXERS, rewritten

from diagnose.fixer import Advice, Edits, Gate, example_request
from diagnose.model import Site

HEAD = """import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

"""
SENDING = (
    HEAD
    + """model = DDP(build())
for x in batches:
    model(x).mean().backward()
{lines}"""
)


def advised(name: str, text: str) -> str:
    answer = FIXERS[name].rewrite(example_request("as-found", text))
    assert isinstance(answer, Advice), answer
    return answer.text


MICRO_STEPS = (
    HEAD
    + """model = DDP(build())
for epoch in range(3):
    for i, (x, y) in enumerate(loader):
        loss = criterion(model(x), y) / accumulate
        loss.backward()
{step}"""
)
STEP = "        if (i + 1) % accumulate == 0:\n            optimizer.step()\n            optimizer.zero_grad()\n"


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (STEP + "    optimizer.step()  # what is left of the epoch\n    optimizer.zero_grad()\n", "also steps"),
        (
            "        if (i + 1) % accumulate:\n            log(loss)\n        else:\n            optimizer.step()\n",
            "also",
        ),
        (STEP + "        if i == 7:\n            optimizer.step()\n", "also steps"),
    ],
)
def test_gradients_that_only_one_rank_has_are_never_stepped_with(step: str, why: str) -> None:
    """An optimizer's step that the condition does not cover would find gradients that no rank has reduced."""
    assert rewritten("no-sync", MICRO_STEPS.format(step=STEP)) is not None
    assert why in advised("no-sync", MICRO_STEPS.format(step=step))


def test_a_function_that_makes_the_backward_pass_may_step_in_every_turn() -> None:
    given = MICRO_STEPS.format(step=STEP).replace("loss.backward()", "update(loss)")
    helper = "def update(loss):\n    loss.backward()\n    first.step()\n\n\n"
    assert rewritten("no-sync", given.replace("model = DDP", helper + "model = DDP")) is None


@pytest.mark.parametrize("leaves", ["continue", "break"])
def test_a_last_micro_step_that_may_not_come_is_not_waited_for(leaves: str) -> None:
    text = (
        HEAD
        + "model = DDP(build())\nfor step in range(9):\n    for micro_step in range(4):\n        x = next(batches)\n"
        f"        if x is None:\n            {leaves}\n        model(x).mean().backward()\n    optimizer.step()\n"
    )
    assert "Not by us: the loop may" in advised("no-sync", text)
    assert rewritten("no-sync", text.replace(f"            {leaves}\n", "            x = 0\n")) is not None


def test_gradients_that_are_not_reduced_yet_are_not_dropped_with_an_epoch() -> None:
    """`zero_grad` does not find what `fully_shard` has only added up."""
    text = MICRO_STEPS.format(step=STEP).replace(
        "model = DDP(build())", "from torch.distributed.fsdp import fully_shard\n\nmodel = build()\nfully_shard(model)"
    )
    assert "set_requires_gradient_sync" in (rewritten("no-sync", text) or "")
    cleared = text.replace("    for i, (", "    optimizer.zero_grad()\n    for i, (")
    assert "set_requires_gradient_sync" in advised("no-sync", cleared)


def test_the_optimizer_in_a_question_within_the_question_counts() -> None:
    step = (
        "        if (i + 1) % accumulate == 0:\n            if scaler is None:\n                optimizer.step()\n"
        "            else:\n                scaler.step(optimizer)\n            optimizer.zero_grad()\n"
    )
    assert "if (i + 1) % accumulate == 0 else model.no_sync():" in (
        rewritten("no-sync", MICRO_STEPS.format(step=step)) or ""
    )


SENDS = "    for p in model.parameters():\n        dist.broadcast(p.data, src=0)\n"


@pytest.mark.parametrize(
    "lines",
    [
        "    optimizer.step()\n    update(average, model)\n" + SENDS.replace("model.", "average."),
        "    optimizer.step()\n" + SENDS.replace("src=0", "src=owner[p]"),
        "    if dist.get_rank() == 0:\n        optimizer.step()\n" + SENDS,
        "    optimizer.step()\n    if is_master:\n        model.load_state_dict(best)\n" + SENDS,
        "    optimizer.step()\n    if worse:\n        restore(model)\n" + textwrap.indent(SENDS, "    "),
    ],
    ids=["an average", "each its own part", "one steps", "one loads", "after a change"],
)
def test_weights_that_differ_between_ranks_are_still_sent(lines: str) -> None:
    assert rewritten("drop-broadcast", SENDING.format(lines=lines)) is None


@pytest.mark.parametrize(
    "lines",
    [
        "    optimizer.step()\n" + SENDS,
        "    optimizer.step()\n    if dist.get_world_size() > 1:\n" + textwrap.indent(SENDS, "    "),
        "    optimizer.step()\n    if dist.get_rank() == 0:\n        print(x)\n"
        + SENDS.replace("model.", "model.module."),
    ],
)
def test_weights_that_are_equal_are_not_sent(lines: str) -> None:
    assert "broadcast" not in (rewritten("drop-broadcast", SENDING.format(lines=lines)) or "broadcast")


@pytest.mark.parametrize("name", ["ddp-buckets", "no-buffer-broadcast", "bf16-gradients"])
@pytest.mark.parametrize(
    "other",
    ["from apex.parallel import DistributedDataParallel as DDP", "class DDP(nn.Module):\n    pass\n"],
    ids=["apex", "own"],
)
def test_wrappers_of_the_same_name_keep_their_own_options(name: str, other: str) -> None:
    text = HEAD + "model = DDP(model)\n"
    assert rewritten(name, text) is not None
    assert rewritten(name, text.replace("from torch.nn.parallel import DistributedDataParallel as DDP", other)) is None


def test_a_wrapper_is_known_by_what_it_is_and_not_by_its_name() -> None:
    text = HEAD.replace("as DDP", "as Replicated") + "model: nn.Module = Replicated(build())\n"
    assert "Replicated(build(), broadcast_buffers=False)" in (rewritten("no-buffer-broadcast", text) or "")
    assert "model.register_comm_hook" in (rewritten("bf16-gradients", text) or "")


def test_a_hook_is_registered_only_where_there_is_a_wrapper() -> None:
    for name in ("bf16-gradients", "powersgd-gradients"):
        assert rewritten(name, HEAD + "if several: model = DDP(model)\n") is None
        assert "\n    model.register_comm_hook" in (
            rewritten(name, HEAD + "if several:\n    model = DDP(model)\n") or ""
        )


def test_another_librarys_sharding_keeps_its_own_options() -> None:
    text = "from fairscale.nn import FullyShardedDataParallel as FSDP\nmodel = FSDP(model)\n"
    assert rewritten("fsdp-keep", text) is None
    assert rewritten("fsdp-keep", text.replace("fairscale.nn", "torch.distributed.fsdp")) is not None


def test_a_program_on_gloo_has_no_settings_of_nccl() -> None:
    text = 'import torch.distributed as dist\n\ndist.init_process_group(backend="{}")\n'
    setting = {"of": "priority"}
    assert rewritten("nccl-environment", text.format("nccl"), setting) is not None
    assert rewritten("nccl-environment", text.format("gloo"), setting) is None


@pytest.mark.parametrize(("name", "why"), [("bf16-gradients", "needs NCCL"), ("powersgd-gradients", "the ranks hang")])
def test_no_hook_is_registered_that_gloo_cannot_bear(name: str, why: str) -> None:
    text = HEAD + 'dist.init_process_group("gloo")\nmodel = DDP(build())\n'
    assert why in advised(name, text)
    assert why in advised(name, text.replace('"gloo"', 'rank=0, backend="gloo"'))
    assert rewritten(name, text.replace("gloo", "nccl")) is not None
    either = text.replace('"gloo"', '"nccl" if on_gpu else "gloo"')
    assert rewritten(name, either) is not None
    line = either.splitlines().index("model = DDP(build())") + 1
    for backend, kind in (("gloo", Advice), ("nccl", Edits)):
        seen = Site("DistributedDataParallel", "train.py", line, None, {"backend": backend})
        answer = FIXERS[name].rewrite(example_request("slow-link", either, sites=[seen]))
        assert isinstance(answer, kind), (backend, answer)


BY_HAND = (
    HEAD
    + '''
dist.init_process_group("gloo")
torch.manual_seed(0)


def evaluate(net, batches: int = 2) -> float:
    """The loss without dropout."""
    net.eval()
    loss = sum(net(torch.ones(4, 8)).square().mean() for _ in range(batches))
    net.train()
    return float(loss)


def named(net):
    return sorted(net.state_dict())


net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 1))
net.to("cpu")
body = [p for n, p in net.named_parameters() if n.startswith("0.")]
rest = [p for n, p in net.named_parameters() if not n.startswith("0.")]
optimizer = torch.optim.SGD([{"params": body, "lr": 0.01}, {"params": rest}], lr=0.1)
torch.manual_seed(1 + dist.get_rank())
losses = []
for step in range(6):
    optimizer.zero_grad()
    loss = net(torch.randn(4, 8)).square().mean()
    loss.backward()
    for parameter in net.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
    optimizer.step()
    if dist.get_rank() == 0 and step % 2:
        losses.append(evaluate(net))
        losses.append(net(torch.ones(4, 8)).mean().item())
    losses.append(loss.item())
names = named(net)
weights = [value.double().sum().item() for value in net.state_dict().values()]
'''
)
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


def test_a_wrapper_of_a_static_graph_reduces_in_every_micro_step() -> None:
    text = MICRO_STEPS.format(step=STEP)
    assert rewritten("no-sync", text.replace("DDP(build())", "DDP(build(), static_graph=False)")) is not None
    assert "beside `static_graph`" in advised(
        "no-sync", text.replace("DDP(build())", "DDP(build(), static_graph=True)")
    )
    assert "beside `static_graph`" in advised("no-sync", text.replace("DDP(build())", "DDP(build(), **options)"))


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


def test_gradients_that_are_looked_at_first_are_reduced_where_they_were() -> None:
    clipped = BY_HAND.replace(
        "    for parameter in", "    nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n    for parameter in"
    )
    assert "before it reduces them" in advised("use-ddp", clipped)
    helper = "def back(loss):\n    loss.backward()\n    nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n\n\n"
    hidden = BY_HAND.replace("    loss.backward()", "    back(loss)").replace("net = nn.Seq", helper + "net = nn.Seq")
    assert "may look at the gradients" in advised("use-ddp", hidden)


FLATTENED = (
    HEAD
    + """
net = Net().cuda()
for x, y in loader:
    criterion(net(x), y).backward()
    flat = torch.cat([p.grad.flatten() for p in net.parameters()])
    dist.all_reduce(flat)
    unflatten(flat / dist.get_world_size(), net)
    optimizer.step()
"""
)


def test_gradients_that_are_reduced_in_another_way_are_spoken_of() -> None:
    late = example_request("unoverlapped-gradients", FLATTENED)
    answer = FIXERS["use-ddp"].rewrite(late)
    line = FLATTENED[: FLATTENED.index("dist.all_reduce(flat)")].count("\n") + 1
    assert isinstance(answer, Advice)
    assert answer.text.startswith(f"train.py:{line} reduces gradients by hand")
    assert rewritten("use-ddp", FLATTENED) is None, "no finding speaks of it"
    sharded = FLATTENED.replace("net = Net().cuda()", "net = fully_shard(Net().cuda())")
    assert FIXERS["use-ddp"].rewrite(example_request("unoverlapped-gradients", sharded)) is None


COUNTED = """import torch
import torch.distributed as dist


def average(model, many):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= many


dist.init_process_group("nccl")
torch.manual_seed(0)
world = dist.get_world_size()
net = Net().cuda()
for x, y in loader:
    criterion(net(x), y).backward()
    average(net, world)
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("(net, world)", "(net, 4)"),
        ("(net, world)", "(net, world * 4)"),
        ("world = dist.get_world_size()", "world = dist.get_world_size() - 1"),
        ("world = dist.get_world_size()", "world = dist.get_world_size()\nworld = 4"),
        ("world = dist.get_world_size()", "world = dist.get_local_world_size()"),
        ("optimizer.zero_grad()\n", "optimizer.zero_grad()\naverage(other, 4)\n"),
        ("(model, many):\n", "(model, many):\n    many = 4\n"),
        ("(model, many):", "(model, _, many=4):"),
        ("p.grad /= many", "p.grad = p.grad / many / 2"),
        ("p.grad)\n", "p.grad, op=dist.ReduceOp.AVG)\n"),
    ],
)
def test_gradients_that_are_divided_by_another_number_are_not_left_to_the_wrapper(before: str, after: str) -> None:
    """Adam hardly tells gradients of another scale apart: no comparison of losses would."""
    assert before in COUNTED
    assert isinstance(FIXERS["use-ddp"].rewrite(example_request("unoverlapped-gradients", COUNTED)), Edits)
    changed = example_request("unoverlapped-gradients", COUNTED.replace(before, after))
    assert isinstance(FIXERS["use-ddp"].rewrite(changed), Advice)


@pytest.mark.parametrize("name", ["world", "job.many"])
@pytest.mark.parametrize(
    ("further", "known"),
    [
        ("", True),
        ("rank, {0} = dist.get_rank(), dist.get_world_size()", True),
        ("{0} *= 4", False),
        ("rank, {0} = info()", False),
        ("first, *{0}, last = 1, dist.get_world_size(), 2, 3", False),
        ("({0}, first), last = info()", False),
        ("{0}: int = 4", False),
        ("{0}: int = dist.get_world_size()", True),
        ("for {0} in range(4): pass", False),
        ("with info() as {0}: pass", False),
        ("{0} = 4", False),
    ],
)
def test_what_a_function_takes_from_outside_is_the_number_of_ranks_if_all_that_it_is_given_is(
    name: str, further: str, known: bool
) -> None:
    text = COUNTED.replace("(model, many)", "(model)").replace("/= many", f"/= {name}").replace("(net, world)", "(net)")
    given = f"{name} = dist.get_world_size()\n{further.format(name)}"
    answer = FIXERS["use-ddp"].rewrite(
        example_request("unoverlapped-gradients", text.replace("world = dist.get_world_size()", given))
    )
    assert isinstance(answer, Edits if known else Advice)


REDUCED = FIXERS["use-ddp"].examples[0].before


@pytest.mark.parametrize(
    ("seed", "edited"),
    [
        ("torch.manual_seed(0)", True),
        ("seed = 3\n    torch.manual_seed(seed)", True),
        ("torch.manual_seed(args.seed)", True),
        ("args.seed = args.seed + offset\n    torch.manual_seed(args.seed)", False),
        ("me = dist.get_rank()\n    offset = me\n    torch.manual_seed(1337 + offset)", False),
        ('here = int(os.environ["RANK"])\n    torch.manual_seed(here)', False),
        ("torch.manual_seed(gpu)", False),
    ],
)
def test_weights_begin_alike_where_the_seed_is_seen_to_be_the_same_on_all_ranks(seed: str, edited: bool) -> None:
    text = REDUCED.replace("def main():", "def main(gpu, args):").replace("torch.manual_seed(0)", seed)
    assert (rewritten("use-ddp", text) is not None) is edited


@pytest.mark.parametrize(
    ("size", "edited"),
    [
        ("dist.get_world_size()", True),
        ("float(args.world_size)", True),
        ("dist.get_world_size() * micro_steps", False),
        ("dist.get_world_size(group)", False),
    ],
)
def test_the_number_of_ranks_is_what_a_name_is_given_whatever_it_is_called(size: str, edited: bool) -> None:
    text = REDUCED.replace("size = float(dist.get_world_size())", f"world_size = {size}").replace(
        "/= size", "/= world_size"
    )
    assert (rewritten("use-ddp", text) is not None) is edited


@pytest.mark.parametrize("rate", ["0.1", "0.1 * (1 + me)"])
def test_a_rate_of_each_rank_is_known_by_where_it_comes_from(rate: str) -> None:
    before = FIXERS["drop-broadcast"].examples[0].before
    text = before.replace("    model = DDP", f"    me = dist.get_rank()\n    rate = {rate}\n    model = DDP").replace(
        "        optimizer.step", "        optimizer.param_groups[0]['lr'] = rate\n        optimizer.step"
    )
    assert (rewritten("drop-broadcast", text) is not None) is ("me" not in rate)


@pytest.mark.parametrize(
    ("made", "asked", "model"),
    [
        ("me = dist.get_rank()\n    first = me == 0", "first", "model.module"),
        ("loader = DataLoader(data, sampler=Sampler(data, rank=rank))", "len(loader) > 3", "model"),
    ],
)
def test_what_one_rank_does_alone_is_known_by_plain_values(made: str, asked: str, model: str) -> None:
    text = REDUCED.replace("    model = Net()", f"    {made}\n    model = Net()")
    text = text.replace(
        "        optimizer.step()", f"        optimizer.step()\n        if {asked}:\n            model(x)"
    )
    assert f"            {model}(x)\n" in (rewritten("use-ddp", text) or "")
