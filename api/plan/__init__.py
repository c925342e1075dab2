"""What reloading and recomputing would cost on a machine that is described by numbers alone."""
