"""Leaves cuDNN's search for the fastest convolutions out of processes whose steps nobody times.

With `torch.backends.cudnn.benchmark` a first step tries up to ten algorithms for each convolution of each shape (25 s
for a ResNet-50 with 128 images on an H100, far longer in float64), and another run may choose others, which round
otherwise. The program reads the setting as it wrote it.
"""

from __future__ import annotations

from typing import Any

from ..process_hooks import ProcessHooks


def leave_out(recipe: dict[str, Any], hub: ProcessHooks) -> None:
    """Leave the search out as soon as torch is imported, where the `recipe` says that the program searches."""
    if recipe.get("searches"):
        hub.on_torch(_leave_out)


def _leave_out(torch: Any) -> None:
    chosen = [bool(torch._C._get_cudnn_benchmark())]
    torch._C._set_cudnn_benchmark(False)

    def get() -> bool:
        return chosen[0]

    def choose(value: bool) -> None:
        chosen[0] = value

    type(torch.backends.cudnn).benchmark = torch.backends.ContextProp(get, choose)
    torch._C._get_cudnn_benchmark, torch._C._set_cudnn_benchmark = get, choose
