"""Samples that a model makes are found to change where that model is trained, by whatever name the program calls it.

Workers make none that require gradients, or of which a layer keeps statistics.
"""

from __future__ import annotations

import pytest
from dataset_programs import asked, program, refused

from diagnose.fixer import Edits

SAMPLE = "return self.transform(torch.load(self.paths[i])), i"
DETACHED = "return self.transform(torch.load(self.paths[i])).detach(), i"
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


@pytest.mark.parametrize(
    ("sample", "made"),
    [
        (SAMPLE, "nn.Linear(16, 8)"),
        (SAMPLE, "nn.Sequential(nn.Flatten(), nn.Linear(16, 8))"),
        (DETACHED, "nn.BatchNorm1d(16, affine=False)"),
    ],
    ids=["a layer", "a layer among others", "statistics"],
)
def test_layers_that_need_gradients_or_keep_statistics_make_no_samples_in_workers(sample: str, made: str) -> None:
    text = with_network(program(sample, dataset="Images(paths, net)"), f"{made}  # !")
    refused("loader-workers", text, "# !")
