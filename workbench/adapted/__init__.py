"""A user's own @triton.jit function, made into a one-file kernel that everything else works on."""
