"""The measurement protocol: the only place that reads a GPU's clock."""
