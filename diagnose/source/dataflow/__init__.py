"""Where values come from and go to.

tree ──▶ flow ──▶ reaching_definitions ◀── mutations ──▶ loop_invariants
    ├──▶ bindings       what gives a name its value
    └──▶ purity       whether evaluating an expression does nothing else
"""
