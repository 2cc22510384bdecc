"""Watches a training program for days: `diagnose watch`.

    rank<k>/heartbeats.jsonl ──▶ run_files ──▶ watcher ──▶ notices ──▶ journal, terminal, metrics_file
    counters beside it ────────────────────▶ │    ▲                        │
                                blocks ──────┘    └── change_test, causes   └──▶ trace request ──▶ `diagnose analyze`

`service` ties them to a running program; all others are pure, but for `run_files`. Nothing here loads numpy: what
watches a job of days shall be small, so that traces are read by a process of its own.
"""
