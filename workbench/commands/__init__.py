"""The commands, one file each, and the code they share."""
