"""The patterns, one a file, in the order in which they choose: what saves most first."""

from diagnose.graph.patterns import add_rms_norm, cross_entropy, gated_unit, linear_cross_entropy

PATTERNS = (linear_cross_entropy.PATTERN, cross_entropy.PATTERN, add_rms_norm.PATTERN, gated_unit.PATTERN)
