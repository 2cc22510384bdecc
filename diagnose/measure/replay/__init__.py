"""What-if replay: the counted steps as they would be without a cause.

host ───┐
device ─┴──▶ graph_builder ──▶ graph ──▶ replay ◀── cuts, overhead ◀── profiler_overhead
                                 │         └──▶ savings       how much shorter the steps would be
                                 └──▶ critical_path
host_waits ◀── replay        the view of a rank that has both, and the operators that bring values to the host
"""
