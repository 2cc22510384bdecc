"""One place that sets a value: a literal of the source, a scalar of a config file, or a word of the command line."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from diagnose.model import Scalar
from diagnose.source.tree.literals import python_literal
from diagnose.source.tree.syntax import Splice


@dataclass(frozen=True, slots=True)
class Setting:
    """A literal in the source, or a scalar of a config file, that decides a value."""

    path: str
    line: int
    splice_to: tuple[int, int]
    value: Scalar
    fixed: bool
    """Whether nobody can override it from outside: it is no default."""
    old: str = ""
    """The text that it takes the place of."""
    form: str = "python"
    """`python`, `yaml`, `json`, `toml`, or `command` for a word of the command line."""
    template: str = "{}"
    """What is written, around the value."""

    def to(self, value: Scalar) -> Splice:
        """The edit that sets it."""
        return Splice(*self.splice_to, self.template.format(self.code(value)))

    def code(self, value: Scalar) -> str:
        """The value as the file writes it."""
        if self.form == "command":
            return _word(value, self.old)
        if self.form == "python" or (isinstance(value, int | float) and not isinstance(value, bool)):
            return python_literal(value, self.old)
        if isinstance(value, bool):
            return "true" if value else "false"
        if value is None:
            return "null"
        quoted = self.form != "yaml" or self.old[:1] in {'"', "'"}
        quote = "'" if self.old[:1] == "'" and self.form != "json" else '"'
        return f"{quote}{value}{quote}" if quoted else value


def _word(value: Scalar, old: str) -> str:
    """A value as a word; True and False in the case of the word that it takes the place of."""
    word = str(value)
    return shlex.quote(word.lower() if isinstance(value, bool) and old.islower() else word)
