"""What experiments share when they judge: spans of times, floors under them, the CPU's time beside
the GPU's, and the values of a knob beside each other."""
