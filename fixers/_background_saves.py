"""What `async-checkpoint` adds beside the user's script: it copies a state, and writes the file in a thread."""

IMPORTS = (
    "import atexit",
    "import collections",
    "import copy",
    "import os",
    "import pathlib",
    "import threading",
    "import torch",
)
CODE = '''
_saving = []  # the save that is being written, and one that waits for it
_failed = []  # what went wrong with files, until it is raised
_spare = {}  # host memory of states that are written, or need not be, for the next


class _Save(threading.Thread):
    """One file that is being written, or waits for the one before it."""

    def __init__(self, state, path, copies, before):
        super().__init__(name="save_in_background")
        self.state, self.path, self.before, self.error, self.done = state, path, before, None, False
        self.found, self.left = _stamp(path), None
        self.taken = threading.Lock()  # once: by who writes it, or by a newer save in its place
        self.buffers = [(kind, copied) for _, kind, copied in copies if kind is not None]
        cloned = [copied for _, kind, copied in copies if kind is None and copied.device.type != "cpu"]
        self.size = float("inf") if cloned else sum(copied.nbytes for _, copied in self.buffers)
        self.copying = {
            device: torch.cuda.current_stream(device).record_event(torch.cuda.Event(blocking=True))
            for device in {value.device for value, _, _ in copies if value.is_cuda}
        }
        stem, suffix = os.path.splitext(path)  # torch.save notes the stem in the file
        self.unfinished = f"{stem}.unfinished-{suffix[1:]}-{os.environ.get('RANK', _rank_of()[0])}"

    def gives_way(self):
        """Whether a newer save takes its place, and its memory; not once it is being written."""
        for copied in self.copying.values():
            copied.synchronize()  # the newer state may be copied by another stream
        return self.taken.acquire(blocking=False)

    def run(self):
        before = self.before
        while before is not None and before.is_alive() and not self.taken.locked():
            before.join(0.1)  # not for as long as it takes: what gave way ends
        if not self.taken.acquire(blocking=False):
            return
        try:
            for device, copied in self.copying.items():
                torch.cuda.set_device(device)  # else a thread's device is the first
                copied.synchronize()
            torch.save(self.state, self.unfinished)
            if _stamp(self.path) in (None, self.found, before and before.left):
                os.replace(self.unfinished, self.path)
                self.left = _stamp(self.path)
        except BaseException as error:
            self.error = error
        finally:
            self.state = self.before = before = None
            pathlib.Path(self.unfinished).unlink(missing_ok=True)  # where it failed, or a plain torch.save came later
            self.done = True


def save_in_background(state, path):
    """As torch.save(state, path), but the file is written while training goes on.

    The tensors are copied to the host first, so that training may change them; they are on the CPU in the file. A
    state that still waits for another file is not written where a newer one is saved to the same path. What is no file
    that another can take the place of is written at once, and so is a state that cannot be copied.
    """
    _settle()
    if not isinstance(path, (str, os.PathLike)) or (os.path.exists(path) and not os.path.isfile(path)):
        _save_now(state, path)
    else:
        _begin(state, path)
    _tell()  # now: what went wrong with another file keeps this state from nothing


def _begin(state, path):
    real = os.path.realpath(path)
    waiting = _saving[1] if len(_saving) > 1 and _saving[1].path == real else None
    copies = {}
    try:
        if waiting is not None and waiting.gives_way():
            _forget(waiting)  # its memory holds the newer state
        else:
            _wait_for_a_place()
        copied = _copied(state, copies)
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


def _wait_for_a_place():
    while _saving and (len(_saving) >= 2 or not _has_room_for(_saving[0].size)):
        _saving[0].join()
        _settle()


def _save_now(state, path):
    _wait_for_all()
    torch.save(state, path)


def finish_saving():
    """Wait until all files are written; raises what went wrong with them."""
    _wait_for_all()
    _spare.clear()
    _tell()


atexit.register(finish_saving)  # where the loop is left by an error or a return, tell what went wrong


def _wait_for_all():
    for save in list(_saving):
        if save.is_alive():
            save.join()
    _settle()


def _settle():
    """Forget the saves that are done; one whose thread has not come to life is written here."""
    for save in list(_saving):
        if not save.is_alive():
            if not save.done:
                save.run()
            _forget(save)
            if save.error is not None:
                _failed.append(save.error)
                save.error = None


def _tell():
    """Raise what went wrong with files; the traceback of the last shows the others above it."""
    if _failed:
        try:
            raise _failed.pop(0)
        finally:
            _tell()


def _forget(save):
    if save not in _saving:
        return  # a signal's handler was first
    _saving.remove(save)
    save.state = None
    for kind, buffer in save.buffers:
        _spare.setdefault(kind, []).append(buffer)


def _stamp(path):
    """What tells a file from the one that was there before."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _rank_of():
    """The rank of this process, of how many."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def _has_room_for(size):
    """Whether all processes of this host could take that, with a lot to spare, of its memory and their control groups'.

    Cached files count as taken, though the system would give some of that up.
    """
    try:
        left = [os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
        with open("/proc/self/cgroup") as file:
            named = [line.strip().split(":", 2)[2] for line in file]
    except (AttributeError, OSError, ValueError):
        return False  # nobody knows
    for group in {above for name in named for above in pathlib.PurePosixPath(name, "_").parents}:
        for limit, used in (
            (f"{group}/memory.max", f"{group}/memory.current"),
            (f"memory/{group}/memory.limit_in_bytes", f"memory/{group}/memory.usage_in_bytes"),
        ):
            try:
                with open(f"/sys/fs/cgroup/{limit}") as most, open(f"/sys/fs/cgroup/{used}") as now:
                    left.append(int(most.read()) - int(now.read()))
            except (OSError, ValueError):
                pass  # there is no such limit
    return 8 * size * int(os.environ.get("LOCAL_WORLD_SIZE", _rank_of()[1])) <= min(left)


def _copied(value, copies):
    if isinstance(value, torch.Tensor):
        plain = type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided
        key = id(value)
        if plain and value.numel():  # tensors that share their memory do so in the file
            bits = (value.is_conj(), value.is_neg())
            key = (value.device, value.data_ptr(), value.dtype, value.shape, value.stride(), *bits)
        if key not in copies:
            copies[key] = (value, *_on_host(value.detach())) if plain else (value, None, copy.deepcopy(value))
        copied = copies[key][2]
        if type(value) is torch.nn.Parameter:
            return torch.nn.Parameter(copied, value.requires_grad)
        return copied.detach().requires_grad_() if plain and value.requires_grad else copied
    if type(value) in (dict, collections.OrderedDict):
        new = type(value)((key, _copied(item, copies)) for key, item in value.items())
        if hasattr(value, "_metadata"):
            new._metadata = value._metadata
        return new
    if type(value) in (list, tuple):
        return type(value)(_copied(item, copies) for item in value)
    seen = {}
    copied = copy.deepcopy(value, seen)
    copies.update((id(each), (each, None, each)) for each in seen.values() if isinstance(each, torch.Tensor))
    return copied


def _on_host(value):
    kind = (value.is_cuda, value.dtype, value.shape, value.stride(), torch.is_inference_mode_enabled())
    spare = _spare.get(kind)
    buffer = spare.pop() if spare else torch.empty_like(value, device="cpu", pin_memory=value.is_cuda)
    return kind, buffer.copy_(value, non_blocking=value.is_cuda)
'''
