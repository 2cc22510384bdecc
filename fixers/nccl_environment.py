"""Tries settings of NCCL that suit some links better than its defaults.

What it changes
    Sets variables at the top of the script, before torch is imported, unless the shell has set them: more sockets and
    threads for each connection over a network of sockets, larger buffers, or a stream of high priority for collectives
    so that they start while the backward pass fills the device. Each is a setting that is tried.

Why it helps
    One thread and one socket for a connection do not fill a fast network. Collectives that wait behind the kernels of
    the backward pass begin late.

Fix safety
    Rounding: other pieces may be added up in another order. Variables that choose transports, algorithms or
    protocols, or keep a host safe (`NCCL_P2P_DISABLE`, `NCCL_SHM_DISABLE`, `NCCL_NVLS_ENABLE`, `NCCL_IB_DISABLE`), are
    never touched, and none that the shell or the program has set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from diagnose.fixer import Advice, Answer, Edits, Example, Facts, Fixer, Gate, Request, Scalar, example_request
from diagnose.program.environment import before_imports, variables
from diagnose.source.tree.edits import parse, splice
from diagnose.source.tree.memo import files_with

_TRIED: Mapping[str, Mapping[str, str]] = {
    "sockets": {"NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4"},
    "priority": {"TORCH_NCCL_HIGH_PRIORITY": "1"},
    "buffers": {"NCCL_BUFFSIZE": "16777216"},
}


def settings(request: Request) -> Sequence[Mapping[str, Scalar]]:
    """Return the settings of variables of which the program and its environment set nothing; sockets only where a
    link is slow."""
    taken = set(request.facts.network_settings or {}) | _set(request)
    slow = request.finding.rule == "slow-link"
    free = [name for name, values in _TRIED.items() if not taken & set(values) and (slow or name != "sockets")]
    return tuple({"of": name} for name in free) or ({},)


def rewrite(request: Request) -> Answer:
    """Set the variables of one setting at the top of the script."""
    wanted = _TRIED.get(str(request.setting.get("of")))
    if wanted is None or _set(request) & set(wanted) or not _uses_nccl(request):
        return None
    source = parse(request.sources.get(request.entry or "", ""))
    lines = [f'os.environ.setdefault("{name}", "{value}")' for name, value in wanted.items()]
    splices = before_imports(source, lines) if source is not None else []
    said = " ".join(f"{name}={value}" for name, value in wanted.items())
    if request.entry is None or source is None or not splices:
        return Advice(f"Try {said} in the shell: the script that starts is not a file we can edit.")
    return Edits({request.entry: splice(source.text, splices)}, f"set {said}")


def _set(request: Request) -> set[str]:
    """Names of variables that the program sets itself."""
    return {each.name for _, source in files_with(request.sources, "NCCL") for each in variables(source)}


def _uses_nccl(request: Request) -> bool:
    text = "\n".join(request.sources.values())
    return "nccl" in text.lower() or ("init_process_group" in text and "gloo" not in text)


def _recorded(text: str) -> Request:
    return example_request("slow-link", text, setting={"of": "sockets"}, facts=Facts(network_settings={}))


_BEFORE = 'import os\n\nimport torch\n\ntorch.distributed.init_process_group("nccl")\n'
_LINES = 'os.environ.setdefault("NCCL_SOCKET_NTHREADS", "4")\nos.environ.setdefault("NCCL_NSOCKS_PERTHREAD", "4")\n'

FIXER = Fixer(
    name="nccl-environment",
    rewrite=rewrite,
    gate=Gate.ROUNDING,
    mechanism="exposed_comm+compute+idle",
    settings=settings,
    order=80,
    after=("ddp-buckets", "no-sync", "use-ddp"),
    examples=(
        Example(_BEFORE, _BEFORE.replace("import os\n\n", f"import os\n\n{_LINES}\n"), _recorded),
        Example(
            _BEFORE.replace("import torch\n", 'os.environ["NCCL_SOCKET_NTHREADS"] = "8"\nimport torch\n', 1),
            None,
            _recorded,
        ),
        Example("import torch\nprint(1)\n", None, _recorded),
    ),
)
