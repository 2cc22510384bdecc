"""Run a program under a recipe and come back with a run folder."""
