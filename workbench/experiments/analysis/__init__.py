"""Analysis that experiments share: times with intervals, roofline bounds, the CPU's time beside the
GPU's, and the values of a knob compared with each other."""
