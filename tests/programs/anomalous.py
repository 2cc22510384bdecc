"""A tiny training run under anomaly detection, which is turned off, on for good, and on for a part."""

import warnings

import light  # noqa: F401 - before torch
import torch


def main() -> None:
    torch.autograd.set_detect_anomaly(False)
    torch.autograd.set_detect_anomaly(mode=True)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with torch.autograd.detect_anomaly():  # for a part
            pass
    print(told[0].filename == __file__)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(12):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
