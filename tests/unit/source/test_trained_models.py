"""Samples that a model makes are found to change where that model is trained, by whatever name the program calls it.

Workers make none that require gradients, or of which a layer keeps statistics.
"""

from __future__ import annotations

import pytest
from dataset_programs import asked, program, refused

from diagnose.fixer import Edits

SAMPLE = "return self.transform(torch.load(self.paths[i])), i"
DETACHED = SAMPLE.replace(", i", ".detach(), i")
TRAINER = """
class Trainer:
    def __init__(self, network):
        self.network = network.to("cpu")
        self.opt = torch.optim.SGD(self.network.parameters(), lr=1)  # !
"""


def with_network(text: str, made: str = "nn.Linear(16, 1)") -> str:
    """The program with another module before its dataset, called `net`."""
    return text.replace("    paths = s", f"    net = {made}\n    paths = s")


@pytest.mark.parametrize(
    ("text", "mark"),
    [
        (program(SAMPLE, epoch="data.transform = model if epoch else None"), "model.parameters()"),
        (
            with_network(program(SAMPLE, dataset="Images(paths, net.score)"), "Net().to('cpu')").replace(
                "model = nn.Linear(16, 1)", "model = net"
            ),
            "model.parameters()",
        ),
        (with_network(program(SAMPLE, dataset="Images(paths, net)", end="Trainer(net)", top=TRAINER)), "# !"),
    ],
    ids=["given later", "a method of it", "of a trainer"],
)
def test_a_model_that_is_trained_makes_no_samples_in_workers(text: str, mark: str) -> None:
    refused("loader-workers", text, mark)


@pytest.mark.parametrize(
    "text",
    [
        with_network(
            program(
                SAMPLE, dataset="Images(paths, net)", end="for p in net.parameters():\n        p.requires_grad = False"
            )
        ),
        with_network(program(SAMPLE, end="data.transform = net")),
        with_network(program(DETACHED, dataset="Images(paths, net)", top=TRAINER, end="Trainer(model)")),
        with_network(program(DETACHED, dataset="Images(paths, net)"), "nn.BatchNorm1d(16).eval()"),
        with_network(program(DETACHED, dataset="Images(paths, net)", end="net.eval()"), "nn.BatchNorm1d(16)"),
        with_network(program(SAMPLE, dataset="Images(paths, net)"), "nn.ReLU()"),
    ],
    ids=["frozen", "never trained", "another is trained", "evaluated at once", "evaluated", "without weights"],
)
def test_a_model_that_stays_as_it_is_may_make_samples_in_workers(text: str) -> None:
    assert isinstance(asked("loader-workers", text), Edits)


def test_layers_that_keep_statistics_make_no_samples_in_workers() -> None:
    text = with_network(program(DETACHED, dataset="Images(paths, net)"), "nn.BatchNorm1d(16, affine=False)  # !")
    refused("loader-workers", text, "# !")


ENCODED = program(SAMPLE, dataset="Images(paths, net)")
NAMED = "z = self.transform(torch.load(self.paths[i]))\nreturn {'x': z, 'y': i}"
MODULE = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(3, 4, 3)
    def forward(self, x):
        return self.body(x)
"""


@pytest.mark.parametrize(
    ("text", "mark"),
    [
        (with_network(ENCODED), "return self.transform"),
        (with_network(ENCODED, "nn.Sequential(nn.Linear(16, 16), nn.ReLU()).eval()"), "return self.transform"),
        (with_network(program(NAMED, dataset="Images(paths, net)")), "z = "),
        (with_network(program(SAMPLE, dataset="Images(paths, net)", top=MODULE), "Net()"), "self.body(x)"),
    ],
    ids=["a layer", "several", "by a name", "a module"],
)
def test_samples_with_the_graph_of_a_layer_cannot_come_from_workers(text: str, mark: str) -> None:
    refused("loader-workers", text, mark)


@pytest.mark.parametrize(
    "text",
    [
        with_network(ENCODED.replace("return self", "with torch.no_grad():\n            return self")),
        with_network(ENCODED, "nn.Linear(16, 16).requires_grad_(False)"),
        with_network(program(DETACHED, dataset="Images(paths, net)")),
        with_network(ENCODED, "nn.Sequential(nn.Upsample(8), nn.ZeroPad2d(2))"),
    ],
    ids=["without gradients", "frozen", "detached", "no weights"],
)
def test_samples_without_a_graph_may_come_from_workers(text: str) -> None:
    assert isinstance(asked("loader-workers", text), Edits)
