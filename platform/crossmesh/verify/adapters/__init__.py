"""The check `adapters`."""
