"""Lets the allocator grow its segments instead of asking for new ones.

What it changes
    Sets `PYTORCH_ALLOC_CONF` to `expandable_segments:True` at the top of the script, before torch is imported, unless
    the shell has set it. Where the program sets the variable itself, this is added to its value.

Why it helps
    Without it, memory that was asked for in pieces of one size serves no request of a larger size: the allocator asks
    the driver again, and when memory runs out it gives all its free pieces back, which waits for the device. Segments
    that can grow hold requests of any size.

Fix safety
    Bitwise: where memory comes from changes no number. A program that shares CUDA tensors with other processes, or
    that chose `backend:cudaMallocAsync` or `expandable_segments:False`, or reads the variable or its whole
    environment, is left alone.
"""

from __future__ import annotations

import re

from diagnose.fixer import Advice, Answer, Edits, Example, Facts, Fixer, Gate, Request, example_request
from diagnose.program.environment import before_imports, variables
from diagnose.source.settings.process_settings import why_not_set
from diagnose.source.tree.edits import parse, replace, splice
from diagnose.source.tree.memo import files_with
from diagnose.source.tree.text_lines import any_matches

_NAMES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
_OPTION = "expandable_segments:True"
_NEW_NAME_SINCE = (2, 9)
_SHARES = re.compile(r"\b(reduce_tensor|_share_cuda_|rebuild_cuda_tensor)\b|\.share_memory_\(\)")


def rewrite(request: Request) -> Answer:
    """Add the option where the program sets the variable, else at the top of the script."""
    if any_matches(_SHARES, request.sources.values()):
        return Advice(
            "The program shares tensors between processes, which expandable segments do not allow everywhere."
        )
    read = why_not_set(request.sources, "the settings of the allocator", *_NAMES)
    if read is not None:
        return Advice(read)
    for path, source in files_with(request.sources, *_NAMES):
        for variable in variables(source):
            if variable.name not in _NAMES:
                continue
            line = source.lines_of(variable.statement)[0]
            given = variable.literal
            if given is None:
                return Advice(f"{path}:{line} sets {variable.name}: add `{_OPTION}` where its value comes from.")
            if "expandable_segments" in given or "cudaMallocAsync" in given:
                return None
            quote = source.code(variable.value)[0]
            value = f"{quote}{given + ',' if given else ''}{_OPTION}{quote}"
            edited = splice(source.text, [replace(source, variable.value, value)])
            return Edits({path: edited}, f"let the allocator grow its segments, in {variable.name}")
    return _insert(request)


def _insert(request: Request) -> Answer:
    name = _NAMES[0] if (request.facts.torch_release or _NEW_NAME_SINCE) >= _NEW_NAME_SINCE else _NAMES[1]
    text = request.sources.get(request.entry or "", "")
    source = parse(text)
    splices = before_imports(source, [f'os.environ.setdefault("{name}", "{_OPTION}")']) if source is not None else []
    if request.entry is None or not splices:
        return Advice(f"Set {name}={_OPTION} in the shell: the script that starts is not a file we can edit.")
    return Edits({request.entry: splice(text, splices)}, "let the allocator grow its segments")


def _recorded(text: str, version: str = "2.11.0") -> Request:
    return example_request("fragmented-memory", text, facts=Facts(torch_version=version))


_SET = 'os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")\n'

FIXER = Fixer(
    name="expandable-segments",
    rewrite=rewrite,
    gate=Gate.BITWISE,
    mechanism="idle",
    order=10,
    examples=(
        Example(
            '"""Trains."""\n\nimport argparse\nimport os\n\nimport torch\nfrom torch import nn\n',
            f'"""Trains."""\n\nimport argparse\nimport os\n\n{_SET}\nimport torch\nfrom torch import nn\n',
            _recorded,
        ),
        Example("import sys\n\nimport torch\n", f"import os\nimport sys\n\n{_SET}\nimport torch\n", _recorded),
        Example("import torch\nimport os\n", f"import os\n\n{_SET}\nimport torch\nimport os\n", _recorded),
        Example(
            "import os\nimport torch\n",
            f"import os\n\n{_SET.replace('PYTORCH_', 'PYTORCH_CUDA_')}\nimport torch\n",
            lambda text: _recorded(text, "2.8.0"),
        ),
        Example(
            "import os\nos.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'max_split_size_mb:128'\nimport torch\n",
            "import os\nos.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'max_split_size_mb:128,expandable_segments:True'\n"
            "import torch\n",
            _recorded,
        ),
        Example(
            "import os\nos.environ['PYTORCH_ALLOC_CONF'] = 'expandable_segments:False'\nimport torch\n", None, _recorded
        ),
        Example("import os\nos.environ['PYTORCH_ALLOC_CONF'] = conf\nimport torch\n", None, _recorded),
        Example("model.share_memory_()\nimport torch\n", None, _recorded),
    ),
)
