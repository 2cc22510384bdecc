"""The parts of a training step, found in programs as people write them, and where their model is built."""

from __future__ import annotations

import pytest

from diagnose.model import Site
from diagnose.source.models.construction_end import after_build
from diagnose.source.models.model_construction import built_model
from diagnose.source.training.training_loop import TrainingStep, training_steps
from diagnose.source.tree.edits import splice

FLAT = """
model = Net()
model = model.to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    opt.zero_grad()
    loss = criterion(model(x.to(device)), y)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    scheduler.step()
"""
FUNCTIONS = """
def train(args, model, loader, optimizer, epoch):
    model.train()
    for index, (data, target) in enumerate(loader):
        output = model(data)
        loss = F.nll_loss(output, target)
        loss.backward()
        optimizer.step()


def main():
    net = Net().to("cuda")
    for epoch in range(args.epochs):
        train(args, net, loader, optimizer, epoch)
"""
ACCUMULATING = """
model = GPT(config)
if compile:
    model = torch.compile(model)
X, Y = get_batch("train")
while True:
    for micro_step in range(accumulation):
        with ctx:
            logits, loss = model(X, Y)
            loss = loss / accumulation
        X, Y = get_batch("train")
        scaler.scale(loss).backward()
    scaler.step(optimizer)
    optimizer.zero_grad(set_to_none=True)
"""
TRAINER = """
class Trainer:
    def __init__(self, model, config):
        self.model = model
        self.opt = torch.optim.AdamW(model.parameters())

    def step(self, batch):
        out = self.model(**batch)
        loss = out.loss
        (loss / self.every).backward()
        self.opt.step()

    def fit(self):
        for batch in self.loader:
            self.step(batch)


net = Net()
Trainer(net, config).fit()
"""
ADVERSARIES = """
netD.zero_grad()
for data in loader:
    output = netD(data)
    real = criterion(output, label)
    real.backward()
    fake = netG(noise)
    output = netD(fake)
    wrong = criterion(output, label)
    wrong.backward()
    optimizerG.step()
"""
GENERATOR_FIRST = """
for real in loader:
    made = netG(noise)
    cheated = criterion(netD(made), valid)
    cheated.backward()
    optimizerG.step()
    kept = pool.query(made)
    told = criterion(netD(real), valid) + criterion(netD(kept.detach()), fake)
    told.backward()
    optimizerD.step()
"""


def only(text: str, sites: list[Site] | None = None) -> TrainingStep:
    (step,) = training_steps({"train.py": text}, sites or [])
    return step


def codes(step: TrainingStep, calls: tuple[object, ...]) -> list[str]:
    return [step.source.code(call) for call in calls]  # type: ignore[arg-type]


def built(text: str) -> str | None:
    found = built_model(only(text), {"train.py": text})
    return found.source.code(found.statement) if found else None


def test_a_flat_script() -> None:
    step = only(FLAT)
    assert (step.loss, step.model, step.batch) == ("loss", "model", ("x", "y"))
    assert codes(step, step.forward) == ["model(x.to(device))"]
    assert codes(step, step.optimizer_steps) == ["opt.step()"]
    assert len(step.clips) == len(step.zero_grads) == 1


def test_a_loop_in_a_function_whose_model_is_passed_to_it() -> None:
    step = only(FUNCTIONS)
    assert (step.loss, step.model, step.batch) == ("loss", "model", ("data", "target"))
    assert built(FUNCTIONS) == 'net = Net().to("cuda")'


def test_gradients_that_are_accumulated_under_a_scaler() -> None:
    step = only(ACCUMULATING)
    assert (step.loss, step.model, step.batch) == ("loss", "model", ("X", "Y"))
    assert codes(step, step.forward) == ["model(X, Y)"]
    assert codes(step, step.optimizer_steps) == ["scaler.step(optimizer)"]


def test_what_happens_under_a_condition_does_not_build_the_model() -> None:
    found = built_model(only(ACCUMULATING), {"train.py": ACCUMULATING})
    assert found is not None
    assert len(found.assigned) == 2
    assert found.source.code(found.statement) == "model = GPT(config)"


def test_a_trainer_class_whose_model_is_handed_to_its_constructor() -> None:
    step = only(TRAINER)
    assert (step.loss, step.model, step.loop) == ("loss", "self.model", None)
    assert codes(step, step.forward) == ["self.model(**batch)"]
    assert built(TRAINER) == "net = Net()"


def test_of_two_losses_each_has_the_calls_it_is_computed_from() -> None:
    first, second = training_steps({"train.py": ADVERSARIES})
    assert codes(first, first.forward) == ["netD(data)"]
    assert codes(second, second.forward) == ["netG(noise)", "netD(fake)"]


def test_what_an_earlier_backward_pass_was_made_for_is_not_called_for_the_next() -> None:
    first, second = training_steps({"train.py": GENERATOR_FIRST})
    assert (first.model, codes(first, first.forward)) == ("netG", ["netG(noise)", "netD(made)"])
    assert (second.model, codes(second, second.forward)) == ("netD", ["netD(real)", "netD(kept.detach())"])


@pytest.mark.parametrize("made", ["netG(noise).detach()", "netG(noise)"])
def test_the_model_of_a_step_is_one_that_gets_gradients(made: str) -> None:
    detached = "made" if "detach" in made else "made.detach()"
    step = only(
        f"for real in loader:\n    made = {made}\n    loss = netD({detached}) - netD(real)\n    loss.backward()\n"
    )
    assert step.model == "netD"
    assert codes(step, step.forward)[0] == "netG(noise)"


def test_a_function_that_is_given_the_model_counts_as_its_call() -> None:
    step = only("for batch in loader:\n    loss = loss_of(model, batch)\n    accelerator.backward(loss)\n")
    assert codes(step, step.forward) == ["loss_of(model, batch)"]
    assert (step.loss, step.model) == ("loss", "model")


def test_the_recorded_line_decides_where_the_name_says_nothing() -> None:
    text = "for x in data:\n    z = prepare(x)\n    y = thing(z)\n    loss = y.mean()\n    loss.backward()\n"
    assert only(text).forward == ()
    step = only(text, [Site("forward", "train.py", 3)])
    assert codes(step, step.forward) == ["thing(z)"]


@pytest.mark.parametrize(
    "text",
    [
        "x = 1\n",
        "class Double(torch.autograd.Function):\n    def backward(ctx, g):\n        return inner.backward(g)\n",
        "def broken(:\n    loss.backward()\n",
    ],
)
def test_what_is_no_training_step_is_none(text: str) -> None:
    assert training_steps({"train.py": text}) == ()


def test_a_model_from_elsewhere_is_not_guessed() -> None:
    assert built("from zoo import model\nfor x in data:\n    loss = model(x)\n    loss.backward()\n") is None


def test_a_timer_of_modules_in_a_file_that_called_no_model_is_no_training_step() -> None:
    timer = "def profile(m, x):\n    for _ in range(3):\n        m(x).sum().backward()\n"
    sources = {"timing.py": timer, "train.py": FLAT}
    assert [step.path for step in training_steps(sources)] == ["timing.py", "train.py"]
    called = [Site("forward", "train.py", 7)]
    assert [step.path for step in training_steps(sources, called)] == ["train.py"]
    elsewhere = [Site("forward", "losses.py", 7)]
    assert len(training_steps(sources, elsewhere)) == 2, "a function of another file calls the model"


HELPER = """
def update(loss, optimizer):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def backward(total_loss, scaler):
    if scaler is not None:
        scaler.scale(total_loss).backward()
    else:
        total_loss.backward()
"""
GIVES_ITS_LOSS = """
from helpers import backward, update

model = Net()
for x, y in loader:
    out = model(x)
    loss = criterion(out, y)
    {call}
"""


@pytest.mark.parametrize("call", ["update(loss, optimizer)", "backward(total_loss=loss, scaler=None)"])
def test_a_loss_that_is_handed_to_a_function_is_followed_back_to_who_computes_it(call: str) -> None:
    sources = {"train.py": GIVES_ITS_LOSS.format(call=call), "helpers.py": HELPER}
    steps = [step for step in training_steps(sources) if step.path == "train.py"]
    assert {step.model for step in steps} == {"model"}
    step = steps[0]
    assert (step.loss, step.batch, step.source.code(step.backward)) == ("loss", ("x", "y"), call)
    built = built_model(step, sources)
    assert built is not None and built.source.code(built.statement) == "model = Net()"


@pytest.mark.parametrize(
    ("imported", "call"), [("from helpers import update", "update"), ("import helpers", "helpers.update")]
)
def test_a_meter_of_the_same_name_makes_no_backward_pass(imported: str, call: str) -> None:
    text = GIVES_ITS_LOSS.replace("from helpers import backward, update", imported).format(
        call=f"{call}(loss, optimizer)\n    meter.update(loss, len(x))\n    logs.update(loss=loss.item())"
    )
    steps = [step for step in training_steps({"train.py": text, "helpers.py": HELPER}) if step.path == "train.py"]
    assert [step.source.code(step.backward) for step in steps] == [f"{call}(loss, optimizer)"]


@pytest.mark.parametrize("logged", ["loss.item()", "float(loss)", "loss.detach()"])
def test_a_method_that_is_given_a_number_makes_no_backward_pass(logged: str) -> None:
    method = "class Engine:\n    def update(self, loss):\n        loss.backward()\n"
    text = GIVES_ITS_LOSS.format(call=f"engine.update(loss)\n    meter.update({logged})")
    steps = [step for step in training_steps({"train.py": text, "engine.py": method}) if step.path == "train.py"]
    assert [step.source.code(step.backward) for step in steps] == ["engine.update(loss)"]


def test_a_function_that_nobody_gives_a_loss_of_a_model_stays_a_step_without_one() -> None:
    steps = training_steps(
        {"helpers.py": HELPER, "train.py": "from helpers import backward\nbackward(penalty, None)\n"}
    )
    assert {(step.path, step.model) for step in steps} == {("helpers.py", None)}


LOOP = "for x, y in loader:\n    loss = criterion(model(x), y)\n    loss.backward()\n    optimizer.step()\n"
METHOD = """
class Trainer:
    def __init__(self, net):
        self.net = net

    def loss_of(self, batch):
        with torch.no_grad():
            goal = self.teacher_net(batch["x"])
        return self.criterion(self.net(batch["x"]), goal)

    def fit(self, loader):
        for batch in loader:
            loss = self.loss_of(batch) / 2
            loss.backward()
            self.optimizer.step()


net = Net()
Trainer(net).fit(loader)
"""
FUNCTION = """
def loss_of(x, y):
    return F.cross_entropy(model(x), y)


model = Net()
for x, y in loader:
    loss_of(x, y).backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("text", "call", "model"),
    [(METHOD, "self.loss_of(batch)", "self.net"), (FUNCTION, "loss_of(x, y)", "model")],
)
def test_the_model_is_found_in_the_function_that_computes_the_loss(text: str, call: str, model: str) -> None:
    step = only(text)
    assert (codes(step, step.forward), step.model) == ([call], model)
    built = built_model(step, {"train.py": text})
    assert built is not None and built.source.code(built.statement).endswith("= Net()")


def test_a_model_that_is_the_functions_own_is_not_the_steps() -> None:
    text = FUNCTION.replace("def loss_of(x, y):", "def loss_of(x, y):\n    model = choose()")
    assert only(text).model is None


@pytest.mark.parametrize(
    "converted", ["    if sync:\n        model = convert(model)\n", "    model = model.to(rank)\n", ""]
)
def test_lines_for_a_built_model_run_whether_it_is_wrapped_or_not(converted: str) -> None:
    text = "model, transform = create(args)\nif distributed:\n" + converted + "    model = DDP(model)\n" + LOOP
    step = only(text)
    built = built_model(step, {"train.py": text})
    assert built is not None
    after = splice(text, [after_build(built, ["prepare(model)"])])
    assert after.startswith("model, transform = create(args)\nprepare(model)\nif distributed:\n")


def test_lines_for_a_model_that_is_built_and_wrapped_in_one_branch_stand_between() -> None:
    text = "if distributed:\n    model = create(args)\n    model = DDP(model)\n" + LOOP
    built = built_model(only(text), {"train.py": text})
    assert built is not None
    assert "create(args)\n    prepare(model)\n    model = DDP" in splice(text, [after_build(built, ["prepare(model)"])])


def test_lines_for_a_model_do_not_stand_where_its_name_is_none_yet() -> None:
    text = "model = None\nif distributed:\n    model = create(args)\n    model = DDP(model)\n" + LOOP
    built = built_model(only(text), {"train.py": text})
    assert built is not None
    assert "create(args)\n    prepare(model)\n    model = DDP" in splice(text, [after_build(built, ["prepare(model)"])])


@pytest.mark.parametrize("wrapped", ["model.to(rank)", "model.cuda(rank).float()"])
def test_lines_for_a_model_stand_before_a_wrapper_that_is_given_the_moved_model(wrapped: str) -> None:
    text = f"model = create(args)\nmodel = DDP({wrapped}, device_ids=[rank])\n" + LOOP
    built = built_model(only(text), {"train.py": text})
    assert built is not None
    assert "create(args)\nprepare(model)\nmodel = DDP" in splice(text, [after_build(built, ["prepare(model)"])])
