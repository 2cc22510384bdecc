"""What is written in place, in the ways that a program may write it; and what only has the look of a write."""

from __future__ import annotations

import pytest

from diagnose.source.dataflow.mutations import is_written
from diagnose.source.dataflow.reaching_definitions import Bound, reaching
from diagnose.source.tree.syntax import parse


@pytest.mark.parametrize(
    "code",
    [
        "x.add_(1)",
        "x[0] = 1",
        "x[0] += 1",
        "x += 1",
        "x[0].zero_()",
        "x.data.mul_(2)",
        "x.data[1:] = 0",
        "x.view(-1).fill_(0)",
        "x.t()[0].copy_(y)",
        "x.reshape(-1)[0] = 1",
        "torch.nn.functional.relu(x, inplace=True)",
        "x.drop(columns='a', inplace=True)",
        "import cv2; cv2.rectangle(x, (0, 0), (9, 9), 0, -1)",
        "import numpy as np; np.copyto(x, y)",
        "x.numpy()[0] = 1",
        "y, x[0] = y[0], y",
        "torch.add(y, y, out=x)",
        "torch.max(y, 0, out=(x, z))",
        "torch.nn.init.zeros_(x)",
        "torch.relu_(x)",
        "torch.nn.functional.relu(x, True)",
        "import kornia; kornia.enhance.normalize(x, m, s, inplace=True)",
        "import cv2; cv2.normalize(x, x, 0, 1, cv2.NORM_MINMAX)",
        "import cv2; cv2.GaussianBlur(y, (3, 3), 0, dst=x)",
        "import numpy as np; np.multiply(x, 2, x)",
        "import numpy as np; np.add.at(x, y, 1)",
        "import numpy as np; np.nan_to_num(x, copy=False)",
        "import scipy.ndimage; scipy.ndimage.gaussian_filter(y, 1, output=x)",
        "for x[0] in y:\n    pass",
    ],
)
def test_each_way_to_write_is_one(code: str) -> None:
    source = parse(f"import torch\n{code}\n")
    assert source is not None
    assert is_written(source, "x")


@pytest.mark.parametrize(
    "code",
    [
        *("y.copy_(x)", "x.__len__()", "y[x] = 0", "f(x)", "x.clone().add_(1)", "x = y", "x.y[0] = 1"),
        *(
            "torch.nn.functional.relu(x, inplace=False)",
            "torch.nn.functional.interpolate(x, 9, None, 'bilinear', True)",
            "torch.nn.ReLU(x, inplace=True)",
            "import cv2; cv2.resize(x, 9)",
            "import numpy as np; np.dot(x, x)",
            "import numpy as np; np.array(x, copy=False)",
            "f(output=x, dst=x)",
        ),
    ],
)
def test_a_read_a_copy_and_a_new_value_are_none(code: str) -> None:
    source = parse(f"import torch\n{code}\n")
    assert source is not None
    assert not is_written(source, "x")


@pytest.mark.parametrize(
    ("code", "bound"),
    [("x.add_(1)", Bound.MUTATED), ("x[0].add_(1)", Bound.LOST), ("torch.nn.init.zeros_(x)", Bound.LOST)],
)
def test_what_a_name_means_is_known_only_after_a_write_to_all_of_it(code: str, bound: Bound) -> None:
    source = parse(f"import torch\nx = torch.ones(2)\n{code}\nuse(x)\n")
    assert source is not None
    assert reaching(source, source.module.body[-1], "x").bound is bound
