"""The gradients that one rank reduces."""

from __future__ import annotations

from functools import cached_property

from diagnose.measure.comm.ddp.gradient_buckets import GradientBucket, GradientRounds, gradient_buckets, gradient_rounds
from diagnose.measure.comm.ddp.gradient_sizes import gradient_pieces
from diagnose.measure.comm.ddp.late_gradients import LateGradients, late_gradients
from diagnose.measure.comm.rank_collectives import RankCollectives
from diagnose.trace.schema import Int64


class RankGradients(RankCollectives):
    """The collectives of one rank, with the gradients among them."""

    @cached_property
    def gradient_rounds(self) -> GradientRounds | None:
        """The gradients that each counted step's optimizer waits for; None where none are reduced."""
        return gradient_rounds(self)

    @cached_property
    def gradient_buckets(self) -> tuple[GradientBucket, ...]:
        """The buckets in which they are reduced, in the order of sending."""
        return gradient_buckets(self, self.gradient_rounds)

    @cached_property
    def gradient_pieces(self) -> tuple[Int64, Int64] | None:
        """Sizes and ready times of the gradients that all ranks reduce; None where sizes are not recorded."""
        buckets = [bucket for bucket in self.gradient_buckets if bucket.kind == "all_reduce"]
        known = buckets and min(bucket.size_bytes for bucket in buckets) > 0
        return gradient_pieces(self, buckets, self.gradient_rounds) if known else None

    @cached_property
    def late_gradients(self) -> LateGradients:
        """Gradients that are reduced after the backward pass."""
        return late_gradients(self)
