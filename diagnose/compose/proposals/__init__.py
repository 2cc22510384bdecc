"""Proposals: which fixes are worth trying, and what each would change. Runs nothing.

findings, fixers ──▶ candidates ──▶ proposals ──▶ proposed_edits ──▶ variants with their diffs
                                        ▲  ▲                ▲
constraints (who excludes whom) ────────┘  │                │
unnamed (tried although no finding asks) ──┘   line_coverage (what an edit leaves alone)
"""
