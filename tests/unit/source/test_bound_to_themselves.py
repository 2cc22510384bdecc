"""Names, attributes and parameters that lead back to themselves have no value, and end no search."""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst
import pytest
from asking import FIXERS

from diagnose.fixer import Advice, Edits, Site, example_request, lines_with
from diagnose.source.dataflow.bindings import passed_to
from diagnose.source.dataflow.mutations import writes_to_input
from diagnose.source.device.transfers import Origin, transfers
from diagnose.source.patterns.causal_masks import causal
from diagnose.source.patterns.numeric import canonical, is_number, root_of
from diagnose.source.samples.sharing.shared_state import shared_state
from diagnose.source.training.every_step import EveryStep
from diagnose.source.training.given_arguments import is_given_alike
from diagnose.source.training.training_loop import training_steps
from diagnose.source.tree.attributes import member
from diagnose.source.tree.syntax import Source, parse


def read(text: str) -> Source:
    source = parse(text)
    assert source is not None
    return source


LAYERS = """
import torch
from torch import nn


class Layers(nn.Sequential):
    def forward(self, x):
        for layer in self:
            x = layer(x)
        return x


def train(net, batches, params):
    for x in batches:
        loss = net.forward(x).mean()
        loss.backward()
        total = 0.0
        for p in params:
            total += p.grad.norm() ** 2
"""


def test_the_object_of_a_method_is_no_argument_of_its_calls() -> None:
    source = read(LAYERS)
    forward = next(source.every(cst.FunctionDef))
    own, given = forward.params.params
    assert passed_to(forward, own, None, {"train.py": source}) is None
    passed = passed_to(forward, given, None, {"train.py": source})
    assert passed is not None
    assert [source.code(value) for _, value in passed if value is not None] == ["x"]


INHERITED = """
from apex import amp


class Base:
    def initialize(self, opt):
        self.opt = opt


class Model(Base):
    def initialize(self, opt):
        Base.initialize(self, opt)


net = Model()
net.initialize(options)
net = amp.initialize(net, optimizer)
"""


def test_a_method_that_is_taken_from_its_class_is_given_its_object_first_and_a_librarys_is_another() -> None:
    source = read(INHERITED)
    initialize = next(source.every(cst.FunctionDef))
    passed = passed_to(initialize, initialize.params.params[1], None, {"train.py": source})
    assert passed is not None
    assert [source.code(value) for _, value in passed if value is not None] == ["opt", "options"]


def test_norms_are_taken_at_once_beside_a_loop_over_the_layers_of_a_module() -> None:
    assert isinstance(FIXERS["foreach-clip"].rewrite(example_request("launch-bound", LAYERS)), Edits)


def test_a_module_is_no_argument_that_it_is_given() -> None:
    text = "class Net:\n    def forward(self, x):\n        if self is None:\n            return x\n"
    text += "net = Net()\nfor x in batches:\n    net(x).mean().backward()\n    optimizer.step()\n"
    source = read(text)
    tested = next(source.every(cst.Comparison)).left
    assert isinstance(tested, cst.Name)
    assert not is_given_alike(EveryStep({"train.py": text}), source, tested)


def test_a_loss_that_is_the_object_of_a_method_is_passed_by_nobody() -> None:
    text = "class Loss:\n    def minimize(self, optimizer):\n        self.backward()\n        optimizer.step()\n"
    text += "def train(net, batches):\n    for x in batches:\n        net(x).minimize(optimizer)\n"
    assert all(step.path == "train.py" for step in training_steps({"train.py": text}))


@pytest.mark.parametrize(
    "given",
    [
        "self.{} = self.{}.float()",
        "self.{} = self.{} * 2",
        "self.{} = self.other\n        self.other = self.{}.float()",
        "self.{0}, self.more = self.more, self.{0}",
        "self.{} += 1",
    ],
)
@pytest.mark.parametrize("asks", [is_number, canonical, root_of, causal, member])
def test_a_member_that_is_made_of_itself_has_no_value(
    given: str, asks: Callable[[Source, cst.BaseExpression], object]
) -> None:
    made = given.replace("{0}", "kept").replace("{}", "kept")
    source = read(f"class Net(Base):\n    def reset(self):\n        {made}\n\n    def get(self):\n        self.kept\n")
    *_, use = (each for each in source.every(cst.Attribute) if each.attr.value == "kept")
    assert asks(source, use) in (None, False, "self.kept")


def test_members_that_are_made_of_others_have_a_value() -> None:
    source = read(
        "class Net:\n    def __init__(self, n):\n        self.n = n\n        self.half = self.n / 2\n"
        "        self.kept = self.half ** 2\n    def forward(self, x):\n        return self.kept\n"
    )
    *_, use = source.every(cst.Attribute)
    value = member(source, use)
    assert value is not None
    assert source.code(value) == "self.half ** 2"


BAR = """from tqdm import tqdm
from data import loader
from train import model, optimizer
loader = tqdm(loader)
for batch in loader:
    loss = model(batch).mean()
    loss.backward()
    optimizer.step()
    loader.set_description(f"{loss.item():.3f}")
"""


def test_what_a_bar_goes_over_may_be_called_as_the_bar() -> None:
    assert not isinstance(FIXERS["defer-item"].rewrite(example_request("host-sync", BAR)), Edits)


SAVE = """import torch
from setup import state, file, model, optimizer


class Schedule:
    def __getstate__(self):
        return {{}}


{made}
for step, batch in enumerate(batches):
    model(batch).mean().backward()
    optimizer.step()
    if step % 100 == 0:
        torch.save({saved})
"""


@pytest.mark.parametrize(
    ("made", "saved"),
    [
        ("state = dict(state)", "state, 'x.pt'"),
        ("file = file", "model.state_dict(), file"),
        ("file, state = state, file", "model.state_dict(), file"),
    ],
)
def test_a_state_or_a_file_that_is_bound_to_itself_is_not_written_in_a_thread(made: str, saved: str) -> None:
    text = SAVE.format(made=made, saved=saved)
    assert not isinstance(FIXERS["async-checkpoint"].rewrite(example_request("periodic-stall", text)), Edits)


def test_a_place_that_is_counted_on_from_elsewhere_is_followed_once() -> None:
    text = "import torch\nfrom setup import at, model, optimizer\nimages = torch.randn(9, 4)\nat = at + 1\n"
    text += "for step in range(9):\n    x = images[at].to('cuda')\n    model(x).mean().backward()\n"
    (transfer,) = transfers(EveryStep({"train.py": text}))
    assert transfer.origin is not Origin.KEPT
    known = text.replace("at = at + 1", "at = 1 + 1").replace(" at,", "")
    (transfer,) = transfers(EveryStep({"train.py": known}))
    assert transfer.origin is Origin.KEPT


GIVEN = """
class Images(Dataset):
    def __getitem__(self, i):
        return self.transform(i)


def build(paths, transform, again):
    data = Images(paths)
    data.transform = transform
    if again:
        return build(paths, transform, False)
    return wrapped(paths, transform)


def wrapped(paths, transform):
    return build(paths, transform, True)


{given}
loader = DataLoader(build(paths, {name}, True))
"""


@pytest.mark.parametrize(("given", "name", "found"), [("", "given", 0), ("def crop(x):\n    return x\n", "crop", 1)])
def test_functions_that_pass_a_parameter_on_to_each_other_are_followed_once(given: str, name: str, found: int) -> None:
    text = GIVEN.format(given=given, name=name)
    source = read(text)
    (loader,) = source.calls_named("DataLoader")
    state = shared_state({"train.py": text}, "train.py", loader, (loader.args[0].value,), (), None)
    made = [each for each in state.code.sampling if isinstance(each, cst.FunctionDef) and each.name.value == "crop"]
    assert len(made) == found
    site = Site("DataLoader", "train.py", lines_with(text, "DataLoader(")[0])
    answer = FIXERS["loader-workers"].rewrite(
        example_request("input-bound", text, sites=[site], setting={"num_workers": 2})
    )
    assert isinstance(answer, Edits | Advice)


@pytest.mark.parametrize("layers", ["rows", "rows, nn.ReLU(inplace=True)"])
def test_layers_that_are_made_of_themselves_write_where_one_of_them_does(layers: str) -> None:
    source = read(
        f"from torch import nn\n\ndef gather(rows):\n    stack = nn.Sequential(stack, {layers})\n    return stack\n"
    )
    made = next(each.value for each in source.every(cst.Return))
    assert made is not None
    assert writes_to_input(source, made) is ("inplace" in layers)
