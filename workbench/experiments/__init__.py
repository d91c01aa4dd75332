"""One experiment a file; each exports `EXPERIMENT`."""
