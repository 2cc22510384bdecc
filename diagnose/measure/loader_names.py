"""Functions that make or fetch the next batch, told by what programs call them.

    makes_batches("get_batch")                  # True, as are `next_batch`, `batch_iterator`, `fetch_samples`, …
    batch_frames(trace)                         # per recorded Python call

A program that reads its data without a `DataLoader` has no mark of a loader: it has a function, and calls it so.
"""

from __future__ import annotations

import re

from diagnose.measure.named import named
from diagnose.trace import Trace
from diagnose.trace.schema import Bool

_VERB = r"get|next|load|fetch|read|sample|draw|make|prepare|build|generate|iter(?:ate)?|create|assemble"
_THING = r"(?:mini_?)?batch(?:es)?|data|samples?|examples?"
_OF = r"(?:a_|an_|the_|one_|new_|next_|random_|train(?:ing)?_|eval_|valid(?:ation)?_|val_|test_|input_)"
_FUNCTION = (
    rf"_*(?:{_VERB})_?{_OF}*(?:{_THING})(?:_samples|_data)?"
    r"|_*(?:mini_?)?batch(?:es|_?(?:iterator|iter|generator|loader|stream|source))"
    r"|_*(?:infinite|endless|cycle|train|data)_?(?:data_?)?(?:loader|generator|iterator|stream)|collate(?:_\w+)?|__next__"
)
_NAMED = re.compile(_FUNCTION, re.IGNORECASE)
_FRAME = re.compile(rf"^(?!(?:.*[/\\])?torch[/\\](?!utils[/\\]data)).+\.py\(\d+\): (?:{_FUNCTION})$", re.IGNORECASE)
"""Of torch's own files only the loader's: its other iterators hand out parameters and modules."""


def makes_batches(function: str) -> bool:
    """Whether a function of this name makes or fetches a batch."""
    return _NAMED.fullmatch(function) is not None


def batch_frames(trace: Trace) -> Bool:
    """Per recorded Python call, whether it makes or fetches a batch."""
    return named(trace.names, trace.frames.name, _FRAME)
