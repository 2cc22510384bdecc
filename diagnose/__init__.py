"""Finds what slows a PyTorch training run, proves what it costs, fixes it, and keeps what measurably helps."""

__version__ = "0.1.0"
