"""Reading and editing source text: trees, names and where they go, arguments, settings, imports; nothing is run."""
