"""Imported before torch, this lets a little program take half as long.

The garbage collector does not walk over torch, neither while it is imported nor when Python ends. And the compiler is
left unloaded: optimizers, profilers and process groups load all of it, as much again as the rest of torch, only to be
told that there is nothing to compile. Stand-ins tell them so; whoever asks them for anything else gets the compiler. So
it is with what torch itself loads for the compiler alone: `torch.export`, and how operators act on tensors without
values.

`python light.py PROGRAM [ARGS]` runs a program that does not import this.
"""

import atexit
import gc
import importlib
import runpy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any


class _Unloaded(ModuleType):
    """A module of the compiler that knows what is said where nothing is compiled."""

    def __init__(self, name: str, **answers: object) -> None:
        super().__init__(name)
        self.__dict__.update(answers)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        for module in _UNLOADED:
            if sys.modules.get(module.__name__) is module:
                del sys.modules[module.__name__]
        importlib.import_module("torch._meta_registrations")
        return getattr(importlib.import_module(self.__name__), name)


_CONFIG = _Unloaded("torch._inductor.config", triton=SimpleNamespace(cudagraphs=False))
_EVAL_FRAME = _Unloaded("torch._dynamo.eval_frame", skip_code=lambda _code: None, OptimizedModule=None)
_UNLOADED = (
    _Unloaded(
        "torch._dynamo",
        eval_frame=_EVAL_FRAME,
        disable=lambda function, *_args, **_kwargs: function,
        graph_break=lambda: None,
        trace_rules=_Unloaded("torch._dynamo.trace_rules", clear_lru_cache=lambda: None),
        utils=_Unloaded("torch._dynamo.utils", get_optimize_ddp_mode=lambda: "ddp_optimizer"),
    ),
    _Unloaded("torch._inductor", config=_CONFIG),
    _EVAL_FRAME,
    _CONFIG,
    _Unloaded("torch.export"),
    _Unloaded("torch._meta_registrations"),
)
sys.modules.update((module.__name__, module) for module in _UNLOADED)

gc.disable()

import torch  # noqa: E402

if hasattr(torch._C, "_set_generator_metaclass"):  # torch 2.13 loads it with what is left out
    torch._C._set_generator_metaclass(importlib.import_module("torch._opaque_base").OpaqueBaseMeta)

gc.enable()
gc.freeze()
atexit.register(gc.freeze)

if __name__ == "__main__":
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
