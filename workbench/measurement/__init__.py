"""Measurement protocol: the only package that reads a GPU's clock."""
