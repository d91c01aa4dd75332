"""Stored results along the commits of a repository, and what changed them."""
