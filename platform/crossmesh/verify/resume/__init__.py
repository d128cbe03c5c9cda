"""The check `resume`."""
