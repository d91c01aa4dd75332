"""Kernels of Apple GPUs: measured on a Mac, or executed by the emulator."""
