"""Read, time and compare what profilers recorded."""
