"""Kernels that exist for experiments: see the docs of each."""
