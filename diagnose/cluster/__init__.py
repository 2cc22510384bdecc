"""The diagnosis of a job whose ranks are read and reduced on the workers of a Dask cluster.

    diagnose_on(parse("dask=tcp://10.0.0.1:8786"), paths, catalogue)      # the same Diagnosis as without a cluster

A worker reads what is read apart, reduces each rank to its digest, and forgets it; digests alone come back. Nothing is
decided here: what is a part, what a digest says and what a job's diagnosis is made of are the same functions that
work without a cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from diagnose.analysis.rank_digest import Digest
from diagnose.cluster.rules import Rules, fingerprint
from diagnose.cluster.worker_functions import ReducedTrace, find_inputs, reduce_part, reduced_together
from diagnose.cluster.workers import Cluster, Workers, parse, workers_of
from diagnose.engine import diagnose_digests
from diagnose.errors import DiagnoseError
from diagnose.model import Diagnosis
from diagnose.plugins import Catalogue
from diagnose.trace.readers import gather
from diagnose.trace.readers.sidecars import companions_of

__all__ = ["Cluster", "diagnose_on", "parse"]

_Of = TypeVar("_Of")


def diagnose_on(
    cluster: Cluster, paths: Sequence[Path], catalogue: Catalogue, extra_rules: Path | None = None
) -> Diagnosis:
    """Return the same diagnosis as `diagnose(open_traces(paths), catalogue)`, read and measured by the workers.

    Raises InputError as that does, and EnvironmentLacks where there is no cluster that can do it.
    """
    if cluster.address is not None:  # workers elsewhere do not stand where the user stands
        paths = [path.absolute() for path in paths]
        extra_rules = extra_rules and extra_rules.absolute()
    with workers_of(cluster) as workers:
        rules = Rules(extra_rules, fingerprint(extra_rules))
        given = _result(workers.map(find_inputs, [list(paths)], rules)[0])
        parts = [part for one in given for part in one.parts]
        answers = dict(zip(parts, workers.map(reduce_part, parts, rules), strict=True))
        every = gather(given, lambda part: _result(answers[part]), _with_warning)
        return diagnose_digests(_join_sidecars(workers, every, rules), catalogue)


def _join_sidecars(workers: Workers, every: Sequence[ReducedTrace], rules: Rules) -> list[Digest]:
    """The digests of the ranks. One that something lies beside is read again, together with it."""
    together = {
        rank: [every[number].piece for number in (rank, *beside)]
        for rank, beside in companions_of(every, [one.is_rank for one in every])
    }
    again = {rank: pieces for rank, pieces in together.items() if len(pieces) > 1}
    digests = map(_result, workers.map(reduced_together, list(again.values()), rules))
    anew = dict(zip(again, digests, strict=True))
    return [anew.get(rank, every[rank].digest) for rank in together]


def _with_warning(one: ReducedTrace, warning: str) -> ReducedTrace:
    digest = replace(one.digest, recorded=(*one.digest.recorded, warning))
    return replace(one, digest=digest, piece=replace(one.piece, warnings=(*one.piece.warnings, warning)))


def _result(answer: _Of | DiagnoseError) -> _Of:
    if isinstance(answer, DiagnoseError):
        raise answer
    return answer
