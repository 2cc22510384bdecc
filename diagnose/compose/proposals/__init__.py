"""Proposals: which fixes are worth trying, and what each would change. Runs nothing.

findings, fixers ──▶ candidates ──▶ proposals ──▶ proposed_edits ──▶ variants with their diffs
                                        ▲  ▲                ▲
constraints (who excludes whom) ────────┘  │                line_coverage (what an edit leaves alone)
fixes_without_finding (no finding asks) ───┘
"""
