"""Backends of a sweep: the live GPU, or a named target that need not be present."""
