"""The parts of a program that depend on which samples are computed together: batch normalisation, and summed losses."""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst

from diagnose.source.tree.literals import string
from diagnose.source.tree.memo import files_with, per_source
from diagnose.source.tree.syntax import Source

_LIBRARIES = ("torchvision.models", "timm", "torch.hub", "segmentation_models_pytorch")
"""Modules that build models of images, most of which normalise batches; what they build is not in the program."""
_BELOW = tuple(f"{name}." for name in _LIBRARIES)
_WORDS = ("BatchNorm", "batch_norm", *(name.rpartition(".")[2] for name in _LIBRARIES))
"""Files without any of these are not parsed."""


def normalises_batches(sources: Mapping[str, str]) -> str | None:
    """The first code that builds or calls a batch normalisation, or takes a model of images from a library."""
    found = (_normalisation(source) for _, source in files_with(sources, *_WORDS))
    return next((code for code in found if code is not None), None)


@per_source
def _normalisation(source: Source) -> str | None:
    """The first code of a file that normalises batches."""
    nodes = source.walk(None, cst.Name, cst.Attribute)
    return next((source.code(node) for node in nodes if _normalises(source, node)), None)


def sums_losses(sources: Mapping[str, str]) -> str | None:
    """The first argument `reduction="sum"`: what is summed over the samples of a batch grows with it."""
    read = files_with(sources, where=lambda text: "sum" in text and "reduction" in text)
    found = (_sum(source) for _, source in read)
    return next((code for code in found if code is not None), None)


@per_source
def _sum(source: Source) -> str | None:
    """The first argument `reduction="sum"` of a file."""
    for argument in source.every(cst.Arg):
        named = argument.keyword is not None and argument.keyword.value == "reduction"
        if named and string(argument.value) == "sum":
            return source.code(argument).rstrip(", ")
    return None


def _normalises(source: Source, node: cst.CSTNode) -> bool:
    own = node.attr.value if isinstance(node, cst.Attribute) else node.value if isinstance(node, cst.Name) else ""
    return "BatchNorm" in own or own == "batch_norm" or source.is_called(node, *_LIBRARIES, *_BELOW)
