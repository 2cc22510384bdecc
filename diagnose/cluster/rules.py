"""The rules that a worker goes by: none but those of the machine that asks, or its digests would say something else."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock

import diagnose
from diagnose.errors import EnvironmentLacks
from diagnose.plugins import Catalogue, load_rules

_DECIDE = ("trace", "measure", "model", "units.py", "rule.py", "plugins.py", "attribution.py", "rank_digest.py")
"""The files that a digest depends on, beside the rules."""
_LOADING = Lock()


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules and settings that a worker must share with this machine for its digests to be comparable."""

    folder: Path | None
    """Further rules of the user's."""
    fingerprint: str
    """The digest of the sources of this package and of those rules."""


def fingerprint(extra_rules: Path | None) -> str:
    """A hash of the sources that diagnose: digests of two machines may be put together only where it is equal."""
    own, extra = _own_sources(), _digest([extra_rules] if extra_rules else [])
    return hashlib.blake2b(own + extra, digest_size=16).hexdigest()


def catalogue_of(rules: Rules) -> Catalogue:
    """The rules of this worker. Raises EnvironmentLacks if they are not those of the machine that asks."""
    if fingerprint(rules.folder) != rules.fingerprint:
        extra = f", and {rules.folder} must be the same folder there" if rules.folder else ""
        raise EnvironmentLacks(
            "the workers have another diagnose than this machine: install "
            f"diagnose-train {diagnose.__version__} from one source on all{extra}"
        )
    with _LOADING:  # a worker may have several threads
        return _loaded(rules)


@cache
def _loaded(rules: Rules) -> Catalogue:
    for name in [name for name in sys.modules if name.startswith("diagnose_local_")]:
        del sys.modules[name]  # a worker outlives the rules that it has loaded
    return load_rules(rules.folder)


@cache
def _own_sources() -> bytes:
    fixers = load_rules().unloaded  # a finding names those that there are
    package, rules = Path(diagnose.__file__).parent, Path(sys.modules["diagnose.rules"].__path__[0])
    return _digest([rules, *(package / name for name in _DECIDE)]) + repr(sorted(fixers)).encode()


def _digest(roots: Iterable[Path]) -> bytes:
    digest = hashlib.blake2b()
    for root in roots:
        for path in [root] if root.is_file() else sorted(root.rglob("*.py")):
            digest.update(f"{path.relative_to(root.parent)}\0".encode() + path.read_bytes())
    return digest.digest()
