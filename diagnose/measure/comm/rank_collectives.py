"""The collectives of one rank beside its other work."""

from __future__ import annotations

from functools import cached_property

from diagnose.measure.comm.collectives import Communication, communication_of
from diagnose.measure.comm.communication_waste import CommunicationWaste
from diagnose.measure.lines.host_side import HostSide


class RankCollectives(HostSide):
    """The collectives of the counted steps, with the work of host and device."""

    @cached_property
    def communication(self) -> Communication:
        """The collectives of the counted steps."""
        return communication_of(self.trace, self.launches, self.classes, self.rows, self.steps, self.backward_passes)

    @cached_property
    def exchange(self) -> CommunicationWaste:
        """The collectives of the counted steps, with the time that each wastes, by cause."""
        return CommunicationWaste(self.trace, self.communication)
