"""The check `unlike`."""
