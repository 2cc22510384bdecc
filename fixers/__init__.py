"""One rewrite a file; see CONTRIBUTING, "Add a fixer"."""
