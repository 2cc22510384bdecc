"""The patterns, one a file, in the order in which they choose: what saves most first.

losses ──────▶ linear_cross_entropy, cross_entropy
norms ───────▶ add_rms_norm, add_layer_norm
gated_units ─▶ swiglu, geglu                          rotary, masked_softmax
"""

from diagnose.graph.patterns import (
    add_layer_norm,
    add_rms_norm,
    cross_entropy,
    geglu,
    linear_cross_entropy,
    masked_softmax,
    rotary,
    swiglu,
)

PATTERNS = (
    linear_cross_entropy.PATTERN,
    cross_entropy.PATTERN,
    add_rms_norm.PATTERN,
    add_layer_norm.PATTERN,
    swiglu.PATTERN,
    geglu.PATTERN,
    rotary.PATTERN,
    masked_softmax.PATTERN,
)
