"""The arguments of one operator, as its recording has them: shapes, number formats, and some values."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod

from diagnose.measure.views.shapes import Shape, Shapes, parsed_dtypes, parsed_lists, parsed_shapes

ITEM_BYTES = {
    "double": 8, "float": 4, "c10::Half": 2, "c10::BFloat16": 2, "c10::complex<float>": 8, "c10::complex<double>": 16,
    "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1, "c10::Float8_e4m3fnuz": 1, "c10::Float8_e5m2fnuz": 1,
    "long int": 8, "long": 8, "int": 4, "short": 2, "short int": 2, "signed char": 1, "unsigned char": 1, "bool": 1,
}  # fmt: skip
"""Bytes of one element, by the profiler's words."""
FORMATS = {
    "double": "fp64", "float": "fp32", "c10::Half": "fp16", "c10::BFloat16": "bf16", "signed char": "int8",
    **dict.fromkeys(("c10::Float8_e4m3fn", "c10::Float8_e5m2", "c10::Float8_e4m3fnuz", "c10::Float8_e5m2fnuz"), "fp8"),
}  # fmt: skip
"""Names of number formats that devices multiply, by the profiler's words."""
NO_TENSOR = frozenset({"", "Scalar", "ScalarList", "TensorList", "Generic", "GenericList", "Device", "Layout"})


class NotRecorded(Exception):
    """The recording lacks what the question needs."""


@dataclass(frozen=True)
class Operands:
    """Arguments by position."""

    shapes: Shapes
    dtypes: tuple[str, ...]
    values: tuple[str, ...] = ()
    """The values as text; empty where none were recorded."""
    lists: tuple[tuple[Shape, ...] | None, ...] = ()
    """The shapes of the tensors in each list of tensors."""

    def is_tensor(self, place: int) -> bool:
        """Whether there is a tensor."""
        return place < len(self.dtypes) and self.dtypes[place] not in NO_TENSOR and place < len(self.shapes)

    @property
    def tensors(self) -> list[int]:
        """The places of tensors."""
        return [place for place in range(len(self.dtypes)) if self.is_tensor(place)]

    def shape(self, place: int, dimensions: int | None = None) -> Shape:
        """A tensor's shape. Raises NotRecorded where there is no tensor (of so many dimensions)."""
        shape = self.shapes[place] if self.is_tensor(place) else None
        if shape is None or (dimensions is not None and len(shape) != dimensions):
            raise NotRecorded
        return shape

    def item_bytes(self, place: int) -> int:
        """Bytes of one element. Raises NotRecorded for a format that is not known."""
        try:
            return ITEM_BYTES[self.dtypes[place]]
        except (IndexError, KeyError):
            raise NotRecorded from None

    def bytes(self, *places: int) -> int:
        """Bytes of some tensors, each as large as its shape says. Raises NotRecorded."""
        return sum(prod(self.shape(place)) * self.item_bytes(place) for place in places)

    def format(self, place: int) -> str | None:
        """The number format of a tensor, as `kernels.MatmulFormat` names it."""
        return FORMATS.get(self.dtypes[place]) if place < len(self.dtypes) else None

    def truth(self, place: int) -> bool:
        """A value `True` or `False`. Raises NotRecorded."""
        if place >= len(self.values) or self.values[place] not in ("True", "False"):
            raise NotRecorded
        return self.values[place] == "True"

    def number(self, place: int) -> int:
        """A whole number. Raises NotRecorded."""
        try:
            return int(self.values[place])
        except (IndexError, ValueError):
            raise NotRecorded from None

    def numbers(self, place: int) -> tuple[int, ...]:
        """A list of whole numbers, `[2, 2]`. Raises NotRecorded."""
        return tuple(int(part) for part in self._parts(place) if part.lstrip("-").isdigit())

    def truths(self, place: int) -> tuple[bool, ...]:
        """A list of truths, `[True, False]`. Raises NotRecorded."""
        return tuple(part == "True" for part in self._parts(place))

    def _parts(self, place: int) -> list[str]:
        text = self.values[place] if place < len(self.values) else ""
        if not text.startswith("["):
            raise NotRecorded
        return [part.strip() for part in text.strip("[]").split(",") if part.strip()]


def operands(shapes: str, dtypes: str, values: str | None = None) -> Operands:
    """The arguments that three texts of a trace say. Raises NotRecorded for texts that say nothing."""
    sizes, formats = parsed_shapes(shapes), parsed_dtypes(dtypes)
    if sizes is None or formats is None:
        raise NotRecorded
    return Operands(sizes, formats, _values(values), parsed_lists(shapes) if "TensorList" in formats else ())


def _values(text: str | None) -> tuple[str, ...]:
    try:
        found = json.loads(text) if text else []
    except (ValueError, RecursionError):
        return ()
    return tuple(map(str, found)) if isinstance(found, list) else ()
