"""The Triton kernels themselves. Importing a module of this package imports Triton."""
