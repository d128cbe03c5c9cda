"""The check `compare_speed`."""
