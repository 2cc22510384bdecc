"""Parts of the first tab, each drawn from the state: steps, ranks, one step in time, the first kernels."""
