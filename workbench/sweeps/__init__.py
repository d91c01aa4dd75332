"""One sweep a file: which kinds of knob vary, and which are tuned for each of their values."""
