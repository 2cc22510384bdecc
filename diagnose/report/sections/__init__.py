"""Parts of several reports: memory, the ladder, ranks side by side, tables of kernels and verdicts, next commands."""
