"""The stock of a loader: batches that its workers have made and training has not taken yet.

As long as there is one, training waits for nothing, however slow the workers are. So whoever measures what a loader
delivers in the long run has to know of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .step_hooks import StepHooks


def stock_of(steps: StepHooks) -> dict[str, int] | None:
    """Batches `held`, of the `asked` for, and the `workers` of the loader that gave training its last batch.

    None for a loader without workers, and where this torch or this system does not tell.
    """
    loader: Any = steps.loader() if steps.loader is not None else None
    workers = getattr(loader, "_num_workers", 0)
    if not workers:
        return None
    try:
        made = loader._data_queue.qsize()
        if loader._worker_result_queue is not loader._data_queue:
            made += loader._worker_result_queue.qsize()  # those still to be pinned
        early = sum(len(info) == 2 for info in loader._task_info.values())  # came before their turn
        asked = loader._tasks_outstanding + early
        ahead = loader._prefetch_factor * workers
    except (AttributeError, NotImplementedError):
        return None
    return {"held": made + early, "asked": asked, "workers": workers, "most": ahead}
