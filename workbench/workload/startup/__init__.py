"""A folder for PYTHONPATH: Python imports `sitecustomize` at the start of each process."""
