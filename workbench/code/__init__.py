"""Say what the machine code of a kernel does."""
