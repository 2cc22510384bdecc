"""Whether the model computes the loss, which a compiler of the model alone would then have before it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import libcst as cst

from diagnose.model import Site
from diagnose.source.models.compilation import model_class
from diagnose.source.models.model_construction import built_model
from diagnose.source.training.training_loop import training_steps
from diagnose.source.tree.syntax import Source, parse
from diagnose.source.tree.text_lines import matches

_LOSS = re.compile(r"\b(?:cross_entropy|CrossEntropyLoss|log_softmax|nll_loss|logsumexp)\b")
"""Torch's operators of a loss over classes; the fused ones have other names."""


def computes_loss(sources: Mapping[str, str], sites: Sequence[Site] = ()) -> bool:
    """Whether the code of some module has a loss over classes; also where the code of a model is not seen."""
    built = [built_model(step, sources) for step in training_steps(sources, sites)]
    if not built or any(one is None or model_class(one, sources) is None for one in built):
        return True
    read = (parse(text) for text in sources.values() if matches(_LOSS, text))
    return any(_has_loss(source, owner) for source in read if source for owner in source.every(cst.ClassDef))


def _has_loss(source: Source, owner: cst.ClassDef) -> bool:
    methods = [one.name.value for one in owner.body.body if isinstance(one, cst.FunctionDef)]
    return "forward" in methods and _LOSS.search(source.code(owner)) is not None
