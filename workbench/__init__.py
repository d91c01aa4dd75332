"""Kernel Workbench: which configuration, how far from the limit, why, and did my change help?"""

__version__ = "0.1.0"
