"""Gradients, clipping and averages of weights as a program writes them out by hand.

gradient_norms       clipping, parameter by parameter
weighted_sum ──▶ moving_averages ──▶ average_dictionaries       exponential moving averages
"""
