"""The operators of a block's forward pass: bytes, times, and whether a result can be kept by itself.

Where a block is computed again, some operators may keep their results (`create_selective_checkpoint_contexts`). What
that is worth is measured in one forward pass of a block of each line: every operator goes by here on its way to the
device, is given to it unchanged, and what it returns is handed on. An operator is not offered where its result

    is no new memory            views, writes into what there is
    is written to afterwards    torch refuses to hand out what has changed
    comes with random numbers   the second forward pass would go on with those that it has drawn in the first
    comes from other ranks      or is FSDP's own housekeeping
    is a cast                   autocast casts a weight once in its region: the second forward pass may cast more often
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...guard import guarded
from ...transparency import unseen
from .block_calls import elapsed_ns

MOST = 8
"""Operators that are told of, those that take longest."""
_RUN_UP_CYCLES = 40_000_000
"""Cycles (some 20 ms) for which the device waits at first, so that it finds all operators of a block waiting: the
time between two events is then the device's, not the host's."""
_AUTOCAST = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}
"""Torch's name for the casting of a kind of device."""
_CAST = "aten._to_copy.default"
_NOT_OURS = ("c10d", "_c10d_functional", "fsdp", "_dtensor", "profiler")


class Operator:
    """One call of an operator."""

    __slots__ = ("begin", "bytes", "end", "fixed", "kept_bytes", "name", "sizes")

    def __init__(self, name: str, begin: Any) -> None:
        self.name, self.begin = name, begin
        self.end: Any = None
        self.sizes: dict[int, int] = {}
        """Bytes of the new memory that it returned, by address."""
        self.bytes = 0
        """Bytes of that memory, all but the block's own output."""
        self.kept_bytes = 0
        """The part of those bytes that autograd keeps."""
        self.fixed = False
        """Whether its result cannot be kept by itself."""


class Operators:
    """The operators of one forward pass, once it has run within `watching`."""

    def __init__(self, torch: Any, clock: Callable[[], Any], generator: Any) -> None:
        """`generator` draws the random numbers of the device that is looked at."""
        self._torch, self._clock, self._generator = torch, clock, generator
        self._seen: list[Operator] = []
        self._begun = 0
        self._autocast: list[str] = []
        """The kinds of devices on which operators are cast as the block begins."""
        self._by_address: dict[int, Operator] = {}
        self._note_before = guarded(self._before)
        self._note_after = guarded(self._after)

    def watching(self) -> Any:
        """A context whose operators are noted."""
        from torch.utils._python_dispatch import TorchDispatchMode

        noted = self

        class Watching(TorchDispatchMode):  # type: ignore[no-untyped-call]
            supports_higher_order_operators = True

            @classmethod
            @unseen
            def ignore_compile_internals(cls) -> bool:
                """Compilation within goes on beside this mode; where it refuses to, `fullgraph=True` were an error."""
                return True

            @unseen
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                kwargs = kwargs or {}
                before = noted._note_before(func)
                try:
                    result = func(*args, **kwargs)
                except RuntimeError as error:
                    result = noted._with_autocast(error, func, args, kwargs)
                noted._note_after(before, func, args, kwargs, result)
                return result

        self._autocast = [kind for kind in _AUTOCAST if self._torch.is_autocast_enabled(kind)]
        if hasattr(self._torch.cuda, "_sleep") and self._torch.cuda.is_initialized():
            self._torch.cuda._sleep(_RUN_UP_CYCLES)
        return Watching()  # type: ignore[no-untyped-call]

    def ended(self, output: Any, kept: dict[int, int] | None) -> None:
        """The block has returned `output`, which stays in any case.

        `kept` has what autograd keeps of it, bytes by address; None: unknown.
        """
        own = _addresses(self._torch, output)
        for one in self._seen:
            for address, size in one.sizes.items():
                # Memory that was given back meanwhile belongs to the last who got it.
                last = self._by_address.get(address) is one
                one.bytes += size if not (last and address in own) else 0
                one.kept_bytes += size if last and address not in own and kept is not None and address in kept else 0
        self._by_address.clear()

    def told(self) -> dict[str, str | int]:
        """Bytes and ns of the operators that can keep their results, by name; the ns of all of them."""
        if len(self._seen) < self._begun:
            return {}  # some could not be looked at: tensors without memory of their own
        sums: dict[str, list[int]] = {}
        for one in self._seen:
            total = sums.setdefault(one.name, [0, 0, 0])
            for at, figure in enumerate((one.bytes, one.kept_bytes, elapsed_ns(one.begin, one.end))):
                total[at] += figure
        fixed = {one.name for one in self._seen if one.fixed}
        whole = sum(took for _, _, took in sums.values())
        offered = [name for name, (size, _, _) in sums.items() if name not in fixed and size]
        offered = sorted(offered, key=lambda name: -sums[name][2])[:MOST]
        if not offered or whole <= 0:
            return {}
        columns = {
            f"operator_{what}": ",".join(str(sums[name][at]) for name in offered)
            for at, what in enumerate(("bytes", "kept_bytes", "ns"))
        }
        return {"operators": ",".join(offered), "operators_ns": whole, **columns}

    def _with_autocast(self, error: RuntimeError, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of an operator that failed, or its `error` again.

        Within a mode nothing is cast any more, not even for operators that an operator's kernel calls by itself:
        the product of a sparse matrix fails there, and does not in the program alone.
        """
        torch_c, schema = self._torch._C, getattr(func, "_schema", None)
        again = self._autocast and schema is not None and not schema.is_mutable
        if not again or isinstance(error, self._torch.OutOfMemoryError):
            raise error
        try:
            excluded = torch_c._dispatch_tls_local_exclude_set()
            for kind in self._autocast:
                excluded -= torch_c.DispatchKeySet(getattr(torch_c.DispatchKey, _AUTOCAST[kind]))
            with torch_c._ForceDispatchKeyGuard(torch_c._dispatch_tls_local_include_set(), excluded):
                return func(*args, **kwargs)
        except Exception:  # noqa: BLE001 - the program is to see what it sees alone
            raise error from None

    def _before(self, func: Any) -> tuple[Operator, Any]:
        self._begun += 1
        state = self._generator.get_state()
        return Operator(str(func), self._clock()), state

    def _after(self, before: tuple[Operator, Any] | None, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        if before is None:
            return
        try:
            self._describe(*before, func, args, kwargs, result)
        except RuntimeError:
            return  # a tensor without memory of its own, as sparse ones are
        self._seen.append(before[0])

    def _describe(self, one: Operator, state: Any, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Fill in what is known of an operator that has just returned."""
        one.end = self._clock()
        given = _addresses(self._torch, [args, list(kwargs.values())])
        written = _written(self._torch, func, args, kwargs)
        for address in written:
            if address in self._by_address:
                self._by_address[address].fixed = True
        returned = _storages(self._torch, result)
        one.sizes = {address: size for address, size in returned.items() if address not in given}
        draws = kwargs.get("generator") is not None or not self._torch.equal(state, self._generator.get_state())
        strange = not hasattr(func, "_schema") or one.name == _CAST or one.name.partition(".")[0] in _NOT_OURS
        one.fixed = bool(written) or draws or strange or any(address in given for address in returned)
        self._by_address.update(dict.fromkeys(one.sizes, one))


def _written(torch: Any, func: Any, args: Any, kwargs: Any) -> set[int]:
    """The memory that an operator writes into, of what it is given."""
    if not hasattr(func, "_schema") or not func._schema.is_mutable:
        return set()
    found: set[int] = set()
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[place] if place < len(args) else kwargs.get(argument.name)
            found |= _addresses(torch, given)
    return found


def _addresses(torch: Any, value: Any) -> set[int]:
    return set(_storages(torch, value))


def _storages(torch: Any, value: Any) -> dict[int, int]:
    """Bytes by address of the memory of all tensors in a value."""
    if isinstance(value, torch.Tensor):
        storage = value.untyped_storage()
        return {storage.data_ptr(): storage.nbytes()} if storage.nbytes() else {}
    if isinstance(value, dict):
        value = list(value.values())
    found: dict[int, int] = {}
    for part in value if isinstance(value, list | tuple) else ():
        found |= _storages(torch, part)
    return found
