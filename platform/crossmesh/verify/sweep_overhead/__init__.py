"""The check `sweep_overhead`."""
