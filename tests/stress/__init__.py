"""Generators of malformed command lines, hostile kernel files and kills; `run.py` runs them."""
