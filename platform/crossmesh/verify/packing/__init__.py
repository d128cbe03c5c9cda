"""The check `packing`."""
