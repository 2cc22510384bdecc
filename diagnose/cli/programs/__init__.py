"""Commands that start the user's program.

words ──▶ argv_split ──▶ run, fix, demo ──▶ watched_run ──▶ screen or lines, exit code
              └────────▶ check (asks fixers, and runs the gates on what they write)
fixer_selection: `--only`, `--skip`; preconditions: what is refused before a program is started
"""
