"""The arguments of libraries that hold the training loop: Hugging Face's Trainer, Accelerate and Lightning.

What a program with a loop of its own writes out, such a library takes as an argument. Fixers ask for a setting by one
name; here is what each library calls it, and where a program gives it: in the call, or for the options that
`HfArgumentParser` makes from a class, in the parser's defaults or in the file that it reads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import libcst as cst

from diagnose.model import Scalar
from diagnose.source.settings.command_line import CommandLine
from diagnose.source.settings.configs import entries, form_of
from diagnose.source.settings.option_parsers import Option, setting_of_option
from diagnose.source.settings.options import CallOptions, Placed
from diagnose.source.settings.setting import Setting
from diagnose.source.settings.values import setting_of
from diagnose.source.tree.arguments import argument, set_keywords
from diagnose.source.tree.edits import call_name, insert_after
from diagnose.source.tree.literals import Literal as LiteralValue
from diagnose.source.tree.literals import literal, python_literal, string
from diagnose.source.tree.memo import parse_all, per_source
from diagnose.source.tree.syntax import Source, Splice

Library = Literal["transformers", "accelerate", "lightning"]

_NAMES: Mapping[Library, Mapping[str, str]] = {
    "transformers": {
        "num_workers": "dataloader_num_workers",
        "pin_memory": "dataloader_pin_memory",
        "persistent_workers": "dataloader_persistent_workers",
        "prefetch_factor": "dataloader_prefetch_factor",
        "batch_size": "per_device_train_batch_size",
        "micro_steps": "gradient_accumulation_steps",
        "precision": "bf16",
        "tf32": "tf32",
        "optimizer": "optim",
        "compile": "torch_compile",
        "find_unused_parameters": "ddp_find_unused_parameters",
        "bucket_cap_mb": "ddp_bucket_cap_mb",
    },
    "accelerate": {"precision": "mixed_precision", "micro_steps": "gradient_accumulation_steps"},
    "lightning": {"precision": "precision", "micro_steps": "accumulate_grad_batches", "strategy": "strategy"},
}
_BFLOAT16: Mapping[Library, Scalar] = {"transformers": True, "accelerate": "bf16", "lightning": "bf16-mixed"}
_FLOAT32: Mapping[Library, tuple[Scalar, ...]] = {
    "transformers": (False, None),
    "accelerate": ("no", None),
    "lightning": (32, "32", "32-true", None),
}
_LIBRARY_OF: Mapping[str, Library] = {
    "transformers": "transformers",
    "trl": "transformers",
    "accelerate": "accelerate",
    "lightning": "lightning",
    "pytorch_lightning": "lightning",
}
_IMPORTS = re.compile(rf"\b(?:import|from)\b[^\n]*\b(?:{'|'.join(_LIBRARY_OF)})")
"""What a file that uses one of them holds; a file that only speaks of them is not parsed."""
_CALLS: Mapping[Library, tuple[str, ...]] = {
    "transformers": ("TrainingArguments", "SFTConfig", "DPOConfig", "GRPOConfig", "RewardConfig"),
    "accelerate": ("Accelerator",),
    "lightning": ("Trainer", "Fabric"),
}
_PARSERS = ("HfArgumentParser", "TrlParser")
_NEED_WORKERS = frozenset({"persistent_workers", "prefetch_factor"})


@dataclass(frozen=True)
class Trainer:
    """One place where a program tells a library how to train."""

    library: Library
    options: CallOptions
    """The trainer's arguments; a setting that the library names differently is also found under our name."""

    @property
    def where(self) -> str:
        """File and line."""
        return f"{self.options.path}:{self.options.source.lines_of(self.options.node)[0]}"

    def knows(self, name: str) -> bool:
        """Whether the library has an argument for a setting of ours."""
        return name in _NAMES[self.library]

    @property
    def bfloat16(self) -> Scalar:
        """The value of `precision` with which it trains in bfloat16."""
        return _BFLOAT16[self.library]

    def is_float32(self, value: Scalar) -> bool:
        """Whether that value of `precision` leaves everything in float32."""
        return any(value == each and type(value) is type(each) for each in _FLOAT32[self.library])

    def is_given(self, name: str) -> bool:
        """Whether the program says anything about a setting."""
        return self.options.given(name) is not None or self.options.setting(name, trusted=False) is not None


def trainers_of(
    sources: Mapping[str, str], configs: Mapping[str, str] | None = None, words: Sequence[str] = ()
) -> tuple[Trainer, ...]:
    """Every such place, in the order of the text."""
    found: list[Trainer] = []
    for path, source in parse_all(sources).items():
        if not _imports_library(source):
            continue
        for call, library in _configuring(source):
            options = _Parsed if call_name(call) in _PARSERS else CallOptions
            arguments = options(path, source, call, sources, configs or {}, words, names=_NAMES[library])
            if not isinstance(arguments, _Parsed) or arguments.is_for_training(_subclasses(source)):
                found.append(Trainer(library, arguments))
    return tuple(found)


@per_source
def _imports_library(source: Source) -> bool:
    return _IMPORTS.search(source.text) is not None


@per_source
def _configuring(source: Source) -> Sequence[tuple[cst.Call, Library]]:
    """The calls of a file that configure a library, each with that."""
    own = _subclasses(source)
    found = ((call, _library(source, call, own)) for call in source.every(cst.Call))
    return tuple((call, library) for call, library in found if library is not None)


def _library(source: Source, call: cst.Call, own: frozenset[str]) -> Library | None:
    name = call_name(call)
    if name in own:
        return "transformers"
    for full in source.names(call.func):
        library = _LIBRARY_OF.get(full.split(".")[0].split("_fabric")[0])
        if library is None:
            continue
        if name in _PARSERS or any(name.endswith(each) for each in _CALLS[library] if library == "transformers"):
            return library
        if name in _CALLS[library]:
            return library
    return None


@per_source
def _subclasses(source: Source) -> frozenset[str]:
    """The program's own classes of arguments for the Trainer."""
    if not source.mentions("TrainingArguments"):
        return frozenset()
    return frozenset(
        each.name.value
        for each in source.every(cst.ClassDef)
        for base in each.bases
        if any(
            name.startswith("transformers.") and name.endswith("TrainingArguments") for name in source.names(base.value)
        )
    )


@dataclass(frozen=True)
class _Parsed(CallOptions):
    """Arguments that `HfArgumentParser` reads from the command line, or from a file, into a class of arguments."""

    def is_for_training(self, own: frozenset[str]) -> bool:
        """Whether one of its classes is the library's class of arguments for training."""
        classes = {each.value for arg in self.node.args for each in self.source.every(cst.Name, arg.value)}
        return any(name in own or name.endswith(_CALLS["transformers"]) for name in classes)

    def given(self, name: str) -> cst.BaseExpression | None:
        """Return what the parser has as a default of its own."""
        there = self._defaults()
        found = argument(there, self.its(name)) if there is not None else None
        return found.value if found is not None else None

    def setting(self, name: str, *, trusted: bool = True) -> Setting | None:
        """Return what sets it: a config file, a default of the parser or of a class; None where the command line
        does."""
        key = cst.SimpleString(f'"{self.its(name)}"')
        asked = cst.Subscript(cst.Name("arguments"), [cst.SubscriptElement(cst.Index(key))])
        recorded = self.recorded.get(name) if trusted else None
        return setting_of(asked, self.path, self.source, self.sources, recorded, configs=self.configs, words=self.words)

    def place(self, name: str, value: Scalar, *, code: str | None = None, beside: str | None = None) -> Placed:
        """Set it where it is set, else in the file that is read, else as the parser's default."""
        del code, beside  # the parser knows nothing of other arguments
        return self.place_all({name: value})[0]

    def place_all(self, values: Mapping[str, Scalar]) -> list[Placed]:
        """Set several; those that are nowhere yet by one edit."""
        placed: list[Placed] = []
        new: dict[str, str] = {}
        for name, value in values.items():
            if (word := self._word(name, value)) is not None:
                placed.append(Placed({word.path: [word.to(value)]} if word.value != value else {}, word.fixed))
                continue
            reason, kept = self._why_not(name, value), self.setting(name)
            if reason is not None:
                placed.append(Placed(reason=reason))
            elif kept is not None:
                placed.append(Placed({kept.path: [kept.to(value)]} if kept.value != value else {}, kept.fixed))
            else:
                new[name] = python_literal(value)
        edits = self.add(new) if new else {}
        if new and not edits:
            listed = " ".join(f"--{self.its(name)} {value}" for name, value in new.items())
            placed.append(Placed(reason=f"{self.where} parses the options: add {listed} to them."))
        return [*placed, Placed(edits, False)] if edits else placed

    def _word(self, name: str, value: Scalar) -> Setting | None:
        """Return where the command line sets it, or would; None where a file is read instead, or there is no other
        option."""
        if not isinstance(self.words, CommandLine) or self._config() is not None:
            return None
        if name in _NEED_WORKERS and f"--{_NAMES['transformers']['num_workers']}" not in " ".join(self.words):
            return None
        known = (f"--{self.its(name)}", f"--{self.its(name).replace('_', '-')}")
        return setting_of_option([Option(known, "value", LiteralValue(None), value is True)], self.words)

    @property
    def where(self) -> str:
        """File and line."""
        return f"{self.path}:{self.source.lines_of(self.node)[0]}"

    def _why_not(self, name: str, value: Scalar) -> str | None:
        """Why a setting has to be changed from outside."""
        its = self.its(name)
        if any(word.split("=")[0].replace("-", "_") == f"__{its}" for word in self.words):
            return f"The command line gives --{its}: say --{its} {value} there."
        if name in _NEED_WORKERS and self.setting("num_workers", trusted=False) is None:
            return f"The program does not set workers itself: add --{its} {value} where you ask for them."
        overridden = self.setting(name) is None and self.setting(name, trusted=False) is not None
        return f"{its} is overridden from outside: say {value} there." if overridden else None

    def add(self, codes: Mapping[str, str]) -> dict[str, list[Splice]]:
        """Give them in the file that is read, else as defaults of the parser; nothing where neither can be edited."""
        codes = {self.its(name): code for name, code in codes.items()}
        config = self._config()
        if config is not None:
            edit = _added(config, self.configs[config], codes)
            return {config: [edit]} if edit is not None else {}
        there = self._defaults()
        if there is not None:
            return {self.path: set_keywords(self.source, there, codes)}
        name, statement = self._variable(), self.source.statement(self.node)
        if name is None or statement is None or "parse_args" not in self.source.text:
            return {}
        listed = ", ".join(f"{key}={code}" for key, code in codes.items())
        return {self.path: [insert_after(self.source, statement, [f"{name}.set_defaults({listed})"])]}

    def _config(self) -> str | None:
        """The file that the options are read from: named on the command line, or in the call that reads it."""
        named = [word.partition("=")[2] or word for word in self.words]
        for call in self.source.every(cst.Call):
            if call_name(call) in {"parse_json_file", "parse_yaml_file"}:
                named += [text for arg in call.args if (text := string(arg.value)) is not None]
        found = {path for path in self.configs for word in named if form_of(word) and path.endswith(word.lstrip("./"))}
        return found.pop() if len(found) == 1 else None

    def _variable(self) -> str | None:
        assign = self.source.parent(self.node)
        target = assign.targets[0].target if isinstance(assign, cst.Assign) and len(assign.targets) == 1 else None
        return target.value if isinstance(target, cst.Name) else None

    def _defaults(self) -> cst.Call | None:
        """`parser.set_defaults(…)`."""
        name = self._variable()
        calls = (call for call in self.source.every(cst.Call) if self.source.code(call.func) == f"{name}.set_defaults")
        return next(calls, None) if name is not None else None


def _added(path: str, text: str, codes: Mapping[str, str]) -> Splice | None:
    """New keys after the last one at the top level of a YAML or JSON file that has no others."""
    kept = entries(path, text)
    form = form_of(path)
    if not kept or any(len(each.keys) != 1 for each in kept) or form not in {"yaml", "json"}:
        return None
    values = {key: _plain(code) for key, code in codes.items()}
    if form == "yaml":
        end = len(text)
        before = "" if text.endswith("\n") else "\n"
        return Splice(end, end, before + "".join(f"{key}: {value}\n" for key, value in values.items()))
    close = text.rstrip().rfind("}")
    at = len(text[:close].rstrip())
    line = text[text.rfind("\n", 0, kept[-1].span[0]) + 1 : kept[-1].span[0]]
    lead = "\n" + line[: len(line) - len(line.lstrip())] if not line.strip().startswith("{") else " "
    return Splice(at, at, "".join(f',{lead}"{key}": {value}' for key, value in values.items()))


def _plain(code: str) -> str:
    """A literal of Python as JSON and YAML write it."""
    found = literal(cst.parse_expression(code))
    value = found.value if found is not None else code
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    return f'"{value}"' if isinstance(value, str) else str(value)
