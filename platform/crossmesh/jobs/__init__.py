"""One module for each verb of `crossmesh`: its keys, and what it does with a checked spec. `command/` finds them by their names."""
