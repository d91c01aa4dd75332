"""The Metal path through MLX: `kernels/` holds the twin of a Triton kernel under its file name.

Empty until that path is written. `workbench.catalog` looks for `metal_shim.kernels` by name and
adds what it finds; nothing in `workbench` imports this package.
"""
