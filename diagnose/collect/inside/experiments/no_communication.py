"""No collectives between ranks: what a step takes when no rank waits for another.

What it takes away
    The exchange of gradients of DistributedDataParallel, by the hook that torch has for this, and after the first step
    collectives that the program or FSDP calls on tensors: each rank copies its own part where others' would arrive.

What stays as it is
    Process groups, barriers and the exchange of Python objects. Gradients are still gathered into buckets.

When it refuses
    A job of one rank, and collectives of DTensor and of pipelines, which torch calls where no function can be replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..change import Change

MEASURES = ("exposed-communication", "straggler", "slow-link", "small-buckets", "unoverlapped-gradients")
BOUNDS = ("regathering-parameters", "syncing-every-microstep", "unused-parameter-search")


def start(change: Change) -> None:
    """Stand in the places of collectives once torch.distributed has come."""
    distributed = change.torch.distributed
    change.nothing = "no collective was called before the measured steps, or there is one rank only"
    if not distributed.is_available():
        return
    for name, local in _LOCAL.items():
        if hasattr(distributed, name):
            change.replace(distributed, name, _instead(change, local))
    for name in ("send", "recv", "isend", "irecv", "batch_isend_irecv"):
        change.replace(distributed, name, _refused(change, name))
    from torch.nn.parallel import DistributedDataParallel

    register = DistributedDataParallel.register_comm_hook
    change.replace(DistributedDataParallel, "__init__", lambda built: _hooked(change, built, register))
    change.replace(DistributedDataParallel, "register_comm_hook", lambda _register: lambda *_args, **_kwargs: None)


class _Done:
    """Stands for the work of a collective that was asked for without waiting."""

    def wait(self, *_timeout: Any) -> bool:
        """Return at once: nothing is communicated."""
        return True

    def is_completed(self) -> bool:
        """Return True: nothing is communicated."""
        return True


def _instead(change: Change, local: Callable[..., None]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(collective: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if change.steps < 1 or change.hub.world_size < 2:
                return collective(*args, **kwargs)
            change.times += 1
            local(*args, **{name: value for name, value in kwargs.items() if name not in _ABOUT_THE_CALL})
            return _Done() if kwargs.get("async_op") else None

        return call

    return make


_ABOUT_THE_CALL = ("op", "group", "async_op", "src", "dst", "group_src", "group_dst")


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    """The tensor stays as this rank has it."""


def _gather_tensor(output_tensor: Any, input_tensor: Any, *_rest: Any) -> None:
    """Fill the output of a gather with this rank's own part, repeated as often as it fits."""
    own = input_tensor.reshape(-1)
    output_tensor.view(-1)[: own.numel()].copy_(own)


def _scatter_tensor(output: Any, input: Any, *_rest: Any) -> None:
    output.view(-1).copy_(input.reshape(-1)[: output.numel()])


def _gather_list(tensor_list: Any, tensor: Any, *_rest: Any) -> None:
    for one in tensor_list:
        one.copy_(tensor)


def _scatter_list(output: Any, input_list: Any, *_rest: Any) -> None:
    output.copy_(input_list[0])


_LOCAL: dict[str, Callable[..., None]] = {
    "all_reduce": _nothing,
    "reduce": _nothing,
    "broadcast": _nothing,
    "all_gather_into_tensor": _gather_tensor,
    "reduce_scatter_tensor": _scatter_tensor,
    "_all_gather_base": _gather_tensor,
    "_reduce_scatter_base": _scatter_tensor,
    "all_gather": _gather_list,
    "reduce_scatter": _scatter_list,
}


def _refused(change: Change, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(exchange: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            change.refuse(f"ranks hand tensors to each other ({name}), which this rank has nothing to put in place of")
            return exchange(*args, **kwargs)

        return call

    return make


def _hooked(change: Change, built: Callable[..., Any], register: Callable[..., Any]) -> Callable[..., Any]:
    def call(module: Any, *args: Any, **kwargs: Any) -> None:
        built(module, *args, **kwargs)

        def exchange_nothing(_state: Any, bucket: Any) -> Any:
            change.times += change.hub.world_size > 1
            future = change.torch.futures.Future()
            future.set_result(bucket.buffer())
            return future

        exchange_nothing.__annotations__ = {}  # torch compares them with its own types, not with their names
        register(module, None, exchange_nothing)

    return call
