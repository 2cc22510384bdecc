"""Writes checkpoints in a thread while training goes on.

`async-checkpoint` makes a program import this module. It needs torch and nothing else of this package.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import copy
import os
import pathlib
import threading
from collections.abc import Collection
from typing import Any

import torch

_Stamp = tuple[int, int, int]
_Kind = tuple[object, ...]
_Copy = tuple[torch.Tensor, "_Kind | None", torch.Tensor]
"""A tensor, the kind of host memory that its copy lies in (None: of no use for another), and the copy."""
_Path = str | os.PathLike[str]

_saving: list[_Save] = []  # the save that is being written, and one that waits for it
_failed: list[BaseException] = []  # what went wrong with files, until it is raised
_spare: dict[_Kind, list[torch.Tensor]] = {}  # host memory of states that are written, or need not be, for the next


class _Save(threading.Thread):
    """One file that is being written, or waits for the one before it."""

    def __init__(self, state: object, path: str, copies: Collection[_Copy], before: _Save | None) -> None:
        super().__init__(name="save_in_background")
        self.state, self.path, self.before, self.done = state, path, before, False
        self.error: BaseException | None = None
        self.found = _stamp(path)
        self.left: _Stamp | None = None
        self.taken = threading.Lock()  # once: by who writes it, or by a newer save in its place
        self.buffers = [(kind, copied) for _, kind, copied in copies if kind is not None]
        cloned = [copied for _, kind, copied in copies if kind is None and copied.device.type != "cpu"]
        self.size = float("inf") if cloned else sum(copied.nbytes for _, copied in self.buffers)
        self.copying = {
            device: torch.cuda.current_stream(device).record_event(torch.cuda.Event(blocking=True))  # type: ignore[no-untyped-call]
            for device in {value.device for value, _, _ in copies if value.is_cuda}
        }
        name = pathlib.Path(path)  # torch.save notes the stem in the file
        end = f"unfinished-{name.suffix[1:]}-{os.environ.get('RANK', _rank_of()[0])}"
        self.unfinished = name.with_name(f"{name.stem}.{end}")

    def gives_way(self) -> bool:
        """Whether a newer save takes its place, and its memory; not once it is being written."""
        for copied in self.copying.values():
            copied.synchronize()  # the newer state may be copied by another stream
        return self.taken.acquire(blocking=False)

    def run(self) -> None:
        before = self.before
        while before is not None and before.is_alive() and not self.taken.locked():
            before.join(0.1)  # not for as long as it takes: what gave way ends
        if not self.taken.acquire(blocking=False):
            return
        try:
            for device, copied in self.copying.items():
                torch.cuda.set_device(device)  # else a thread's device is the first
                copied.synchronize()
            torch.save(self.state, str(self.unfinished))
            if _stamp(self.path) in (None, self.found, before and before.left):
                self.unfinished.replace(self.path)
                self.left = _stamp(self.path)
        except BaseException as error:  # noqa: BLE001 - the thread that trains raises it
            self.error = error
        finally:
            self.state = self.before = before = None
            self.unfinished.unlink(missing_ok=True)  # where it failed, or a plain torch.save came later
            self.done = True


def save_in_background(state: object, path: _Path) -> None:
    """Save like `torch.save(state, path)`, but write the file while training goes on.

    The tensors are copied to the host first, so that training may change them; they are on the CPU in the file. A
    state that still waits for another file is not written where a newer one is saved to the same path. What is no file
    that another can take the place of is written at once, and so is a state that cannot be copied.
    """
    _settle()
    if not isinstance(path, str | os.PathLike) or (pathlib.Path(path).exists() and not pathlib.Path(path).is_file()):
        _save_now(state, path)
    else:
        _begin(state, path)
    _tell()  # now: what went wrong with another file keeps this state from nothing


def _begin(state: object, path: _Path) -> None:
    real = os.path.realpath(path)
    waiting = _saving[1] if len(_saving) > 1 and _saving[1].path == real else None
    copies: dict[object, _Copy] = {}
    try:
        if waiting is not None and waiting.gives_way():
            _forget(waiting)  # its memory holds the newer state
        else:
            _wait_for_a_place()
        copied = _copied(state, copies, {})
    except BaseException as error:  # it has no room, or is of a kind that cannot be copied
        interrupts = not isinstance(error, Exception)
        if not interrupts or (waiting is not None and waiting not in _saving):
            copies.clear()
            _save_now(state, path)  # after an interrupt, since the one that waited is gone
        if interrupts:
            raise
        return
    save = _Save(copied, real, copies.values(), _saving[-1] if _saving else None)
    _spare.clear()  # the state has no use for it
    _saving.append(save)  # first: a start may be interrupted
    try:
        save.start()
    except RuntimeError:  # there are too many threads, or Python ends
        _wait_for_all()  # which writes it


def _wait_for_a_place() -> None:
    while _saving and (len(_saving) >= 2 or not _has_room_for(_saving[0].size)):
        _saving[0].join()
        _settle()


def _save_now(state: object, path: _Path) -> None:
    _wait_for_all()
    torch.save(state, path)


def finish_saving() -> None:
    """Wait until all files are written; raises what went wrong with them."""
    _wait_for_all()
    _spare.clear()
    _tell()


atexit.register(finish_saving)  # where the loop is left by an error or a return, tell what went wrong


def _wait_for_all() -> None:
    for save in list(_saving):
        if save.is_alive():
            save.join()
    _settle()


def _settle() -> None:
    """Forget the saves that are done; one whose thread has not come to life is written here."""
    for save in list(_saving):
        if not save.is_alive():
            if not save.done:
                save.run()
            _forget(save)
            if save.error is not None:
                _failed.append(save.error)
                save.error = None


def _tell() -> None:
    """Raise what went wrong with files; the traceback of the last shows the others above it."""
    if _failed:
        try:
            raise _failed.pop(0)
        finally:
            _tell()


def _forget(save: _Save) -> None:
    if save not in _saving:
        return  # a signal's handler was first
    _saving.remove(save)
    save.state = None
    for kind, buffer in save.buffers:
        _spare.setdefault(kind, []).append(buffer)


def _stamp(path: str) -> _Stamp | None:
    """Return the stamp that tells a file from the one that was there before."""
    try:
        found = pathlib.Path(path).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _rank_of() -> tuple[int, int]:
    """The rank of this process, of how many."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def _has_room_for(size: float) -> bool:
    """Whether the host's memory and control groups have ample room for `size` bytes in each of its processes.

    Cached files count as taken, though the system would give some of that up.
    """
    try:
        left = [os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
        named = [line.split(":", 2)[2] for line in _read("/proc/self/cgroup").splitlines()]
    except (AttributeError, OSError, ValueError):
        return False  # nobody knows
    for group in {above for name in named for above in pathlib.PurePosixPath(name, "_").parents}:
        for limit, used in (
            (f"{group}/memory.max", f"{group}/memory.current"),
            (f"memory/{group}/memory.limit_in_bytes", f"memory/{group}/memory.usage_in_bytes"),
        ):
            with contextlib.suppress(OSError, ValueError):  # there is no such limit
                left.append(int(_read(f"/sys/fs/cgroup/{limit}")) - int(_read(f"/sys/fs/cgroup/{used}")))
    return 8 * size * int(os.environ.get("LOCAL_WORLD_SIZE", _rank_of()[1])) <= min(left)


def _read(path: str) -> str:
    return pathlib.Path(path).read_text()


def _copied(value: Any, copies: dict[object, _Copy], objects: dict[int, Any]) -> Any:
    """A copy that nothing else can change; what is in the state twice is in the copy twice, and not two things."""
    if isinstance(value, torch.Tensor):
        return _copied_tensor(value, copies)
    if id(value) in objects:
        return objects[id(value)]
    if type(value) in (dict, collections.OrderedDict):
        new = objects[id(value)] = type(value)()
        new.update((key, _copied(item, copies, objects)) for key, item in value.items())
        if hasattr(value, "_metadata"):
            new._metadata = value._metadata
        return new
    if type(value) is list:
        items = objects[id(value)] = []
        items += [_copied(item, copies, objects) for item in value]
        return items
    if type(value) is tuple:
        return objects.setdefault(id(value), tuple(_copied(item, copies, objects) for item in value))
    before = {id(each) for each in objects.values()}
    copied = copy.deepcopy(value, objects)
    inner = (each for each in objects.values() if isinstance(each, torch.Tensor) and id(each) not in before)
    copies.update((id(each), (each, None, each)) for each in inner)
    return copied


def _copied_tensor(value: torch.Tensor, copies: dict[object, _Copy]) -> torch.Tensor:
    plain = type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided
    key: object = id(value)
    if plain and value.numel():  # tensors that share their memory do so in the file
        bits = (value.is_conj(), value.is_neg())
        key = (value.device, value.data_ptr(), value.dtype, value.shape, value.stride(), *bits)
    if key not in copies:
        copies[key] = (value, *_on_host(value.detach())) if plain else (value, None, copy.deepcopy(value))
    copied = copies[key][2]
    if type(value) is torch.nn.Parameter:
        return torch.nn.Parameter(copied, value.requires_grad)
    return copied.detach().requires_grad_() if plain and value.requires_grad else copied


def _on_host(value: torch.Tensor) -> tuple[_Kind, torch.Tensor]:
    kind = (value.is_cuda, value.dtype, value.shape, value.stride(), torch.is_inference_mode_enabled())
    spare = _spare.get(kind)
    buffer = spare.pop() if spare else torch.empty_like(value, device="cpu", pin_memory=value.is_cuda)
    return kind, buffer.copy_(value, non_blocking=value.is_cuda)
