"""Optimizers, clipping and averages of weights that a program writes out by hand.

scalar_machine ──▶ optimizer_formula ──▶ own_optimizer       a class that computes what torch's does
gradient_norms       clipping, parameter by parameter
weighted_sum ──▶ moving_averages ──▶ average_dictionaries       exponential moving averages
"""
