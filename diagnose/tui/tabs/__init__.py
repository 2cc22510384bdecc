"""The tabs, one a file; `present` says which of them have something to say."""
