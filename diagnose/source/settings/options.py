"""An argument of a call, set where the program keeps it: in the call, in its `**options`, or further away."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import libcst as cst

from diagnose.model import Scalar
from diagnose.source.settings.defaults import keys_of
from diagnose.source.settings.mappings import Known, Layer, clashes, is_overridden, layers_of, name_of, set_keys
from diagnose.source.settings.other_readers import has_other_readers
from diagnose.source.settings.setting import Setting
from diagnose.source.settings.shown_options import shows_mapping, shows_options
from diagnose.source.settings.values import setting_of
from diagnose.source.tree.arguments import argument, set_keywords
from diagnose.source.tree.edits import call_name, replace
from diagnose.source.tree.literals import literal, number, python_literal
from diagnose.source.tree.memo import parse_all
from diagnose.source.tree.syntax import Source, Splice


@dataclass(frozen=True)
class Placed:
    """Edits by file. Without a `reason` none means that the argument has the value already."""

    edits: Mapping[str, Sequence[Splice]] = field(default_factory=dict)
    fixed: bool = True
    """Whether the value holds whatever comes from outside; a default may be overridden."""
    reason: str | None = None
    """Why it cannot be set."""


@dataclass(frozen=True)
class CallOptions:
    """A call in the user's files, with what the run recorded of it."""

    path: str
    source: Source
    node: cst.Call
    sources: Mapping[str, str]
    configs: Mapping[str, str] = field(default_factory=dict)
    words: Sequence[str] = ()
    recorded: Mapping[str, Scalar] = field(default_factory=dict)
    """Arguments as they took effect in the run."""
    positions: Mapping[str, int] = field(default_factory=dict)
    """The positions of parameters that may be passed without their name."""
    names: Mapping[str, str] = field(default_factory=dict)
    """What the call calls an argument that is asked for by another name."""
    accelerated: bool = False
    """Whether the run had an accelerator."""

    @property
    def _known(self) -> Known:
        return Known(self.sources, self.recorded, self.accelerated)

    def its(self, name: str) -> str:
        """Return the call's own name for the argument."""
        return self.names.get(name, name)

    def given(self, name: str) -> cst.BaseExpression | None:
        """The expression that the call, or the dictionary that it takes, gives for a parameter."""
        there = self._argument(name)
        if there is not None:
            return there.value
        found = self._layer_with(name)
        return found[1] if found is not None else None

    @property
    def options_with_workers(self) -> str | None:
        """The code of a dictionary that the call takes, where only that itself says how many workers there are.

        Its text does not say it, other loaders take it with another number, or it must stay as it is.
        """
        stars = [arg.value for arg in self.node.args if arg.star == "**"]
        if len(stars) != 1 or self._argument("num_workers") is not None or self._layer_of_workers is not None:
            return None
        named = isinstance(stars[0], cst.Name)
        held = isinstance(stars[0], cst.Attribute) and self.setting("num_workers") is None
        return self.source.code(stars[0]) if named or held else None

    @property
    def _layer_of_workers(self) -> Layer | None:
        """The dictionary that gives the call its workers, where what needs workers may stand beside them."""
        found = self._layer_with("num_workers") if self._argument("num_workers") is None else None
        if found is None or clashes(found[0], self.node, {self.its(name) for name in _NEED_WORKERS}):
            return None
        if self._shows_layer(found[0]) or is_overridden(self.sources, found[0], self.its("num_workers")):
            return None
        return found[0]

    def setting(self, name: str, *, trusted: bool = True) -> Setting | None:
        """Return the setting of an argument; `trusted`: the recorded value still applies (no fix has touched it)."""
        there = self._argument(name)
        recorded = self.recorded.get(name) if trusted else None
        if there is not None:
            return self._follow(there.value, self.path, self.source, recorded)
        found = self._layer_with(name)
        if found is not None:
            return self._follow(found[1], found[0].path, found[0].source, recorded)
        return self._in_config(name, recorded)

    def value(self, name: str) -> Scalar:
        """The value that the text gives an argument where it can be told, else the recorded one."""
        setting = self.setting(name, trusted=False)
        return setting.value if setting is not None else self.recorded.get(name)

    def place(self, name: str, value: Scalar, *, code: str | None = None) -> Placed:
        """Set an argument. `code` is written instead of the value where the call or its dictionary says it itself."""
        expression = self.given(name)
        if expression is None:
            kept = self.setting(name)
            if kept is not None:
                return Placed({kept.path: [kept.to(value)]} if kept.value != value else {}, kept.fixed)
            if self._may_be_given(name):
                return self._elsewhere(name)
            return self._added(name, python_literal(value) if code is None else code)
        layer = self._layer_with(name) if self._argument(name) is None else None
        if layer is not None and self._shows_layer(layer[0]):
            return self._shown(name)
        if layer is not None and name in _NEED_WORKERS and self._layer_of_workers is None:
            return self._elsewhere(name)
        if code is not None and literal(expression) is not None:
            path, source = (layer[0].path, layer[0].source) if layer is not None else (self.path, self.source)
            same = source.code(expression) == code
            return Placed({} if same else {path: [replace(source, expression, code)]})
        return self._replaced(name, expression, value)

    def place_all(self, values: Mapping[str, Scalar]) -> list[Placed]:
        """Set several; those that are nowhere yet by one edit."""
        unset = [name for name in values if self.given(name) is None and self.setting(name) is None]
        absent = [name for name in unset if not self._may_be_given(name)]
        added = self.add({name: python_literal(values[name]) for name in absent})
        return [Placed(added), *(self.place(name, values[name]) for name in values if name not in absent)]

    def _may_be_given(self, name: str) -> bool:
        """Whether one of several dictionaries that the call may take has a value from elsewhere."""
        stars = {self.source.code(arg.value) for arg in self.node.args if arg.star == "**"}
        assigns = self.source.every(cst.Assign)
        made = [each.value for each in assigns for target in each.targets if self.source.code(target.target) in stars]
        values = (value for each in made for value in keys_of(self.source, self.its(name), each))
        return len(made) > 1 and any(literal(value) is None for value in values)

    def _added(self, name: str, code: str) -> Placed:
        """Give a parameter that has no argument yet one: what needs workers, beside what says how many there are."""
        elsewhere = self._argument("num_workers") is None and self._layer_with("num_workers") is not None
        if name in _NEED_WORKERS and elsewhere and not (self._layer_of_workers or self.options_with_workers):
            return self._elsewhere(name)
        return Placed(self.add({name: code}))

    def _elsewhere(self, name: str) -> Placed:
        line = self.source.lines_of(self.node)[0]
        return Placed(reason=f"{self.path}:{line} takes num_workers from elsewhere: set {self.its(name)} there.")

    def add(self, codes: Mapping[str, str]) -> dict[str, list[Splice]]:
        """Give parameters that have no argument yet one each: in the call, or in the dictionary that it takes."""
        stars = [arg for arg in self.node.args if arg.star == "**"]
        own = {self.its(name): code for name, code in codes.items()}
        if not own:
            return {}
        layers = layers_of(stars[-1].value, self.path, self.source, self._known) if stars else []
        layer = self._home(stars[-1].value, layers, codes) if layers else None
        if layer is not None and not clashes(layer, self.node, own) and not self._shows_layer(layer):
            return {layer.path: set_keys(layer, own)}
        if layer is None and layers is not None:
            return {self.path: set_keywords(self.source, self.node, own, positions=self.positions)}
        listed = ", ".join(f'"{name}": {code}' for name, code in own.items())
        star = stars[-1].value
        return {self.path: [replace(self.source, star, f"{{**{self.source.code(star)}, {listed}}}")]}

    def _home(self, options: cst.BaseExpression, layers: Sequence[Layer], codes: Mapping[str, str]) -> Layer | None:
        """The dictionary in which new arguments are at home; None where they belong in the call."""
        likely = [layer for layer in layers if any(layer.value(known) is not None for known in _BESIDE)]
        layer = (likely or layers)[-1]
        if _NEED_WORKERS.isdisjoint(codes):
            return None if not likely and self._says_itself(layer, {self.its(name) for name in codes}) else layer
        if "num_workers" not in codes:
            return self._layer_of_workers
        return None if self._is_of_others(options) else layer

    def _is_of_others(self, options: cst.BaseExpression) -> bool:
        """Whether other calls take a dictionary: they may have no workers."""
        return any(
            arg.star == "**" and source.code(arg.value) == self.source.code(options)
            for source in parse_all(self.sources).values()
            for call in source.every(cst.Call)
            if call is not self.node
            for arg in call.args
        )

    def _says_itself(self, layer: Layer, keys: Collection[str]) -> bool:
        """Whether the call has arguments of its own, and its dictionary is empty and never gets these keys."""
        named = any(arg.keyword is not None for arg in self.node.args)
        empty = isinstance(layer.node, cst.Dict) and not layer.node.elements
        text = layer.source.text
        return named and empty and not any(f"'{name}'" in text or f'"{name}"' in text for name in keys)

    def _replaced(self, name: str, expression: cst.BaseExpression, value: Scalar) -> Placed:
        setting = self.setting(name)
        layer = self._layer_with(name) if self._argument(name) is None else None
        path, source = (layer[0].path, layer[0].source) if layer is not None else (self.path, self.source)
        number_asked = isinstance(value, int) and not isinstance(value, bool)
        shown = setting is not None and self._shows(setting, expression)
        steers = number_asked and literal(expression) is None and has_other_readers(self.sources, source, expression)
        counts = number_asked and (layer is None or steers)
        if shown and not counts:
            return self._shown(name)
        if setting is not None and not shown and not steers:
            edits = {setting.path: [setting.to(value)]} if setting.value != value else {}
            return Placed(edits, setting.fixed)
        code = source.code(expression)
        if not counts:
            line = self.source.lines_of(self.node)[0]
            return Placed(
                reason=f"{self.path}:{line} gives {self.its(name)}={code}, which comes from elsewhere: set it there."
            )
        assert isinstance(value, int)  # it counts
        present = self.recorded.get(name, setting.value if setting is not None else None)
        bound = "min" if isinstance(present, int) and value < present else "max"
        if isinstance(expression, cst.Call) and source.code(expression.func) in {"max", "min"}:
            limit = expression.args[-1].value
            if number(limit) == value:
                return Placed()
            if number(limit) is not None and source.code(expression.func) == bound:
                return Placed({path: [replace(source, limit, str(value))]})
        # It comes from outside (a command line, a file), or is shown with other options, or the program makes more of
        # it: what is asked for there still counts beyond this value.
        return Placed({path: [replace(source, expression, f"{bound}({code}, {value})")]})

    def _shown(self, name: str) -> Placed:
        line = self.source.lines_of(self.node)[0]
        return Placed(
            reason=f"{self.path}:{line} takes {self.its(name)} from options that the program shows: set it there."
        )

    def _shows_layer(self, layer: Layer) -> bool:
        """Whether the program shows the whole of a dictionary, which another entry would change."""
        name = name_of(layer)
        return name is not None and name.isidentifier() and shows_mapping(self.sources, name)

    def _shows(self, setting: Setting, expression: cst.BaseExpression) -> bool:
        """Whether the program would show another value there. What it says of a changed command line is known."""
        return setting.form != "command" and literal(expression) is None and shows_options(self.sources, expression)

    def _follow(self, node: cst.BaseExpression, path: str, source: Source, recorded: Scalar) -> Setting | None:
        readers = ("DataLoader", call_name(self.node))
        return setting_of(
            node, path, source, self.sources, recorded, configs=self.configs, words=self.words, readers=readers
        )

    def _argument(self, name: str) -> cst.Arg | None:
        return argument(self.node, self.its(name), self.positions.get(name))

    def _in_config(self, name: str, recorded: Scalar) -> Setting | None:
        """The key of a config file whose part the call takes: `**config["loader"]`."""
        stars = [arg.value for arg in self.node.args if arg.star == "**"]
        if not self.configs or len(stars) != 1 or not isinstance(stars[0], cst.Subscript | cst.Attribute | cst.Name):
            return None
        key = cst.Subscript(stars[0], [cst.SubscriptElement(cst.Index(cst.SimpleString(f'"{self.its(name)}"')))])
        found = self._follow(key, self.path, self.source, recorded)
        return found if found is not None and found.form != "python" else None

    def _layer_with(self, name: str) -> tuple[Layer, cst.BaseExpression] | None:
        for star in reversed([arg for arg in self.node.args if arg.star == "**"]):
            layers = layers_of(star.value, self.path, self.source, self._known)
            for layer in reversed(layers or []):
                value = layer.value(self.its(name))
                if value is not None:
                    return layer, value
        return None


_NEED_WORKERS = frozenset({"persistent_workers", "prefetch_factor"})
"""Arguments that a loader without workers takes for an error."""
_BESIDE = ("num_workers", "pin_memory", "shuffle", "batch_size")
