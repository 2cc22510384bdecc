"""Where values come from and go to.

tree ──▶ flow ──▶ reaching_definitions ◀── mutations ──▶ loop_invariants
    ├──▶ bindings       what gives a name its value
    ├──▶ iteration      what a loop goes through, and what counts its turns
    └──▶ purity         whether evaluating an expression does nothing else
"""
