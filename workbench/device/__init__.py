"""Devices: their limits and peaks, occupancy, ceilings and the cost model."""
