"""Parts of the engine of profilers: the machine, command lines, child processes, and the recorders,
which run inside of the program that is recorded."""
