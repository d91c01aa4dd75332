"""The search for the fastest config: space, first pass, finals, selection."""
