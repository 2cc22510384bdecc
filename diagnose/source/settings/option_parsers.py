"""The options that a program declares for its command line, and the words that give one.

argparse and click declare each option by a call; tyro and `HfArgumentParser` make one of every field of a class. The
setting of an option is a word of the command line where it stands there, else one more at its end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import libcst as cst

from diagnose.model import Scalar
from diagnose.source.settings.command_line import COMMAND_LINE, CommandLine, Word, value_of_word
from diagnose.source.settings.defaults import field_default, option_names, options_named
from diagnose.source.settings.setting import Setting
from diagnose.source.tree import literals
from diagnose.source.tree.arguments import argument
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.literals import string
from diagnose.source.tree.syntax import Source

_PARSED_CLASSES = {"cli": "-", "HfArgumentParser": "_", "TrlParser": "_"}
"""Calls that make options of a class's fields, with what stands between the words of their names."""


_OPTION = re.compile(r"--?[A-Za-z]")


@dataclass(frozen=True)
class Option:
    """One option as the program declares it."""

    names: tuple[str, ...]
    """All its spellings: `-j`, `--workers`."""
    kind: Literal["value", "on", "off", "either"] = "value"
    """Whether a value follows, or the word alone turns it on or off, or either, as `--x` and `--no-x`."""
    default: literals.Literal | None = None
    """The value without it; None where that is no literal."""
    bare: bool = False
    """Whether an option that takes a value is on where it is given without one."""

    @property
    def name(self) -> str:
        """The spelling that people read."""
        return next((name for name in self.names if name.startswith("--")), self.names[0])

    @property
    def negated(self) -> str:
        """The word that turns an `either` option off."""
        return f"--no-{self.name.removeprefix('--')}"


def declared(sources: Mapping[str, Source], name: str) -> list[Option]:
    """The options that fill the attribute of that name."""
    return [option for source in sources.values() for option in (*_calls(source, name), *_fields(sources, name))]


def _calls(source: Source, name: str) -> Iterator[Option]:
    for call in options_named(source, name):
        option = _of_call(source, call)
        if option is not None:
            yield option


def _of_call(source: Source, call: cst.Call) -> Option | None:
    names = tuple(one for one in option_names(call) if one.startswith("-"))
    action, default, many = argument(call, "action"), argument(call, "default"), argument(call, "nargs")
    known = literals.literal(default.value) if default is not None else literals.Literal(None)
    doing = source.code(action.value).strip("\"'").rpartition(".")[2] if action is not None else "store"
    either = [one for one in names if "/" in one]
    flag = argument(call, "is_flag")
    if not names:
        return None
    if either:
        split = either[0].split("/")[0].strip()
        return Option((split,), "either", known)
    if doing == "BooleanOptionalAction":
        return Option(names, "either", known)
    if doing in {"store_true", "store_false"} or (flag is not None and source.code(flag.value) == "True"):
        off = literals.Literal(doing == "store_false")
        return Option(names, "off" if off.value else "on", known if default is not None else off)
    if doing != "store" or (many is not None and string(many.value) != "?"):
        return None
    bare = many is not None and argument(call, "const") is not None
    return Option(names, "value", known, bare)


def _fields(sources: Mapping[str, Source], name: str) -> Iterator[Option]:
    """Fields of the classes that a call makes options of."""
    for parser, classes, dash in _parsed_classes(sources):
        for source in sources.values():
            for definition in source.every(cst.ClassDef):
                if definition.name.value not in classes:
                    continue
                for field in source.every(cst.AnnAssign, definition):
                    if isinstance(field.target, cst.Name) and field.target.value == name:
                        yield _of_field(source, field, name, dash, parser)


def _parsed_classes(sources: Mapping[str, Source]) -> Iterator[tuple[str, set[str], str]]:
    for source in sources.values():
        for call in source.every(cst.Call):
            dash = _PARSED_CLASSES.get(call_name(call))
            if dash is None or (call_name(call) == "cli" and "tyro.cli" not in source.names(call.func)):
                continue
            named = {each.value for arg in call.args for each in source.every(cst.Name, arg.value)}
            yield call_name(call), named, dash


def _of_field(source: Source, field: cst.AnnAssign, name: str, dash: str, parser: str) -> Option:
    known = literals.literal(field_default(field.value)) if field.value is not None else None
    word = f"--{name.replace('_', dash)}"
    names = tuple(dict.fromkeys((word, f"--{name}")))
    if "bool" not in source.code(field.annotation):
        return Option(names, "value", known)
    return Option(names, "either", known) if parser == "cli" else Option(names, "value", known, bare=True)


def setting_of_option(options: Sequence[Option], command: CommandLine) -> Setting | None:
    """Return where the command line sets an option, or would; None where that cannot be told."""
    if not command.steers or len(options) != 1:
        return None
    option = options[0]
    opposite = (option.negated, option.negated.replace("-", "_").replace("__", "--", 1))
    if _stands_alone(option, command):
        return None
    given = command.given(option.names, takes_value=option.kind == "value")
    negated = command.given(opposite, takes_value=False) if option.kind == "either" else None
    if option.kind == "either" and given is not None and negated is not None:
        return None
    if negated is not None:
        return _on(negated, False, f"{option.name}\n")
    if given is not None and option.kind == "value":
        return _replaced(given)
    if given is not None:
        return _on(given, option.kind != "off", f"{option.negated}\n" if option.kind == "either" else "")
    if option.default is None or not command.takes_more:
        return None
    return _added(option, option.default.value, command)


def _stands_alone(option: Option, command: CommandLine) -> bool:
    """Whether the option is given without the value that it may take."""
    words = command.words[command.own :]
    at = max((at for at, word in enumerate(words) if word in option.names), default=None)
    return (
        option.kind == "value" and at is not None and (at + 1 == len(words) or _OPTION.match(words[at + 1]) is not None)
    )


def _added(option: Option, default: Scalar, command: CommandLine) -> Setting | None:
    if option.kind == "value":
        # Where a word alone turns it on, a value need not be chosen.
        alone = option.bare and default in (None, False)
        template = f"{option.name}\n" if alone else f"{option.name}\n{{}}\n"
        return Setting(COMMAND_LINE, 0, command.end, default, True, "", "command", template)
    if option.kind == "either":
        word = option.negated if default is True else option.name
        return _on(Word(command.end, ""), default, f"{word}\n")
    taken = default is (option.kind == "on")  # the only value that its word gives is there already
    return None if taken else _on(Word(command.end, ""), bool(default), f"{option.name}\n")


def _on(word: Word, value: Scalar, template: str) -> Setting:
    return Setting(COMMAND_LINE, 0, word.span, value, True, "", "command", template)


def _replaced(word: Word) -> Setting:
    value = value_of_word(word.text)
    return Setting(COMMAND_LINE, 0, word.span, value, True, word.text, "command", f"{word.before}{{}}")


def setting_of_words(keys: Sequence[str], command: CommandLine) -> Setting | None:
    """Return where the command line sets a value by its path, `optim.fused=True`; None where it does not."""
    word = command.keyed(keys)
    return _replaced(word) if word is not None else None


def setting_of_global(name: str, command: CommandLine) -> Setting | None:
    """Return where `--name=value` sets a global of a script that takes its globals from such words; None where it would
    not.

    Files that are named behind the word may set it again, and others than such words show that it does not take them.
    """
    own = command.words[command.own :]
    files = [at for at, word in enumerate(own) if not word.startswith("--")]
    if not command.steers or any("=" not in word for word in own if word.startswith("--")):
        return None
    word = command.given((f"--{name}",), takes_value=False)
    if word is not None:
        at = max(at for at, each in enumerate(own) if each.startswith(f"--{name}="))
        return _replaced(word) if not files or files[-1] < at else None
    return None
