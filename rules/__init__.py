"""One bottleneck a file; see CONTRIBUTING, "Add a rule"."""
