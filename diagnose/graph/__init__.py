"""The graph rewriter: `torch.compile(model, backend="diagnose")`.

It looks for places in the model's graph that a fused operator of `diagnose.kernels` does with less memory moved or
held, checks on the values of the first call that the operator does the same there, forward and backward, puts it in
their place, and hands the rest to Inductor or runs it as it is. `report()` says what became of every place.

a model's graph ──▶ backend ──▶ site_search ──▶ capture ──▶ equivalence, timing ──▶ decision ──▶ the rewritten graph
                                    ▲                                                  │
                                patterns/                             account ──▶ report()

torch finds the backend where the package is installed; where it only lies on the path, importing this registers it.
"""

from importlib.metadata import entry_points

from diagnose.graph.account import GraphRecord, Report, SiteRecord, report
from diagnose.graph.backend import backend

__all__ = ["GraphRecord", "Report", "SiteRecord", "backend", "report"]

if not entry_points(group="torch_dynamo_backends", name="diagnose"):
    # Deferred: torch.compile imports it anyway, and a program that only asks for a report need not.
    from torch._dynamo import register_backend

    register_backend(backend, name="diagnose")
