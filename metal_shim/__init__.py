"""The Metal path through MLX: `kernels/` holds the twin of a Triton kernel under its file name.

`workbench.catalog` looks for `metal_shim.kernels` by name and adds what it finds."""
