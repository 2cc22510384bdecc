"""The options of `torch.compile(model, backend="diagnose", options={...})`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from diagnose.graph.site import Inner

OURS = ("inner", "rewrite", "print")


@dataclass(frozen=True)
class Options:
    """The backend's options: the compiler of the remaining graph, which sites to rewrite, and the options handed to
    that compiler.
    """

    inner: str | Callable[..., Any] = "inductor"
    """`inductor`, `eager`, the name of another backend, or a backend."""
    rewrite: Literal["pays", "all"] | frozenset[str] = "pays"
    """Sites where rewriting pays, all that are equivalent, or all that are equivalent of some patterns."""
    prints: bool = False
    """Whether each graph's outcome goes to stderr."""
    handed_on: Mapping[str, Any] = field(default_factory=dict)
    """Options of Inductor's."""

    @property
    def kind(self) -> Inner:
        """Whether a compiler fuses what is left."""
        return "eager" if self.inner in ("eager", "aot_eager") else "compiled"

    def considers(self, pattern: str) -> bool:
        """Whether sites of a pattern may be rewritten."""
        return not isinstance(self.rewrite, frozenset) or pattern in self.rewrite


def parse_options(options: Mapping[str, Any] | None, mode: str | None, patterns: tuple[str, ...]) -> Options:
    """The options as given; what cannot be meant is refused."""
    given = dict(options or {})
    inner = given.pop("inner", "inductor")
    if not (isinstance(inner, str) or callable(inner)) or inner == "diagnose":
        raise ValueError(f"`inner` is a backend that runs what is left, not {inner!r}")
    rewrite = given.pop("rewrite", "pays")
    if rewrite not in ("pays", "all"):
        names = {rewrite} if isinstance(rewrite, str) else set(rewrite)
        if unknown := names - set(patterns):
            strange = ", ".join(sorted(map(str, unknown)))
            raise ValueError(f"`rewrite` is `pays`, `all` or some of {', '.join(patterns)}; not {strange}")
        rewrite = frozenset(names)
    prints = bool(given.pop("print", False))
    if mode not in (None, "default"):
        given = {**_of_mode(mode), **given}
    if given and inner != "inductor":
        raise ValueError(
            f"options are {', '.join(OURS)}, and Inductor's where it runs what is left; not {', '.join(sorted(given))}"
        )
    return Options(inner, rewrite, prints, given)


def _of_mode(mode: str) -> dict[str, Any]:
    from torch._inductor import list_mode_options

    return dict(list_mode_options(mode))
