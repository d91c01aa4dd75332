"""One operation a file: reference, Spec, device code, configs, launchers."""
