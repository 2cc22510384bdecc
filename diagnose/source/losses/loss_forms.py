"""Every cross entropy of a file in one form: those that are called, and those that are written out."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from diagnose.source.dataflow.flow import within
from diagnose.source.losses.nll_loss import WrittenLikelihood, written_likelihoods
from diagnose.source.patterns.cross_entropy import CrossEntropy, cross_entropies, means_the_same, refused_option
from diagnose.source.tree.syntax import Source


def has_losses(text: str) -> bool:
    """Whether a file may have any: to ask this takes no time, to read a file does."""
    return any(word in text for word in ("cross_entropy", "CrossEntropyLoss", "log_softmax"))


def losses(source: Source, below: cst.CSTNode | None = None) -> Iterator[CrossEntropy]:
    """Yield the losses of a file or of a part of it."""
    yield from cross_entropies(source, below)
    for found in written_likelihoods(source) if "log_softmax" in source.text else ():
        if below is None or found.root is below or within(source, found.root, below):
            yield _as_called(found)


def _as_called(found: WrittenLikelihood) -> CrossEntropy:
    """The written loss in the form of a call of cross entropy."""
    source = found.source
    assert found.logits is not None and found.targets is not None
    named = [(name, source.code(value)) for name, value in found.keywords]
    if found.reduction == "sum":
        named.append(("reduction", '"sum"'))
    elif found.negative and found.reduction != "mean":
        named.append(("reduction", '"none"'))
    return CrossEntropy(
        source,
        found.root,
        found.logits,
        found.targets,
        tuple(named),
        refused_option(named),
        all(means_the_same(source, value) for _, value in found.keywords),
        last=found.classes == -1,
        column=found.column,
        steps=tuple(found.steps),
        flat=found.flat,
        sizes=tuple(found.sizes),
    )
