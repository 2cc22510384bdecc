"""The calibration of this machine that applies to this process, as fields of `diagnose.model.Facts`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ...calibrations import ceilings_for, curves_for, folder, library_of, network_settings, stored


def calibrated(torch: Any, distributed: Any, facts: Mapping[str, Any]) -> dict[str, Any]:
    """`distributed` is `torch.distributed` once the job's ranks are connected, else None."""
    settings = network_settings(os.environ)
    found: dict[str, Any] = {"network_settings": settings}
    place = folder()
    if place is None or not place.is_dir():
        return found
    records = stored(place)
    found["ceilings"] = ceilings_for(records, facts)
    if distributed is not None:
        library = library_of(torch, str(distributed.get_backend()))
        found["curves"] = curves_for(records, facts, library, settings)
    return found
