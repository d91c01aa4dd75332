"""The sides that a sweep can run on: a live GPU, or a named target with no GPU present."""
