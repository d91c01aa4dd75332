"""Adapt a user's own @triton.jit function to a one-file kernel that every command works on."""
