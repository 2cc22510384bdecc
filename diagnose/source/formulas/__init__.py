"""Formulas that a source writes out: attention, normalisations, activations, losses, optimizers."""
