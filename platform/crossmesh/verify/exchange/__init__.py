"""The check `exchange`."""
