"""Measure on the GPUs of other machines: Dask's workers join, and each measures in its turn."""
