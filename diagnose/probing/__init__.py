"""Probes: one part of the step is taken away in a copy of the program, and a trial says what it costs.

    choice              which probes would settle the top findings, cheapest first
    trial               runs them against the program as found; nothing of it is ever offered as a patch
    probe_comparison    what their answers say of the findings

The probes themselves are the files of `collect/inside/experiments`.
"""
