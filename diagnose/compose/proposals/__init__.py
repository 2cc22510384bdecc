"""What is worth trying, and what it would change: nothing runs here.

findings, fixers ──▶ candidates ──▶ proposals ──▶ proposed_edits ──▶ variants with their diffs
                                        ▲  ▲                ▲
constraints (who excludes whom) ────────┘  │                │
unnamed (tried although no finding asks) ──┘   line_coverage (what an edit leaves alone)
"""
