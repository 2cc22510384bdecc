"""The program with its fixes: texts in memory, what fixers may look at, and the same stored on disk.

the diagnosed run ──▶ run_context ──▶ stack ──▶ stack_store ──▶ `apply --only`
                           ▲
asking_time ───────────────┘      how long a fixer may look at the files
"""
