"""Which runs a comparison is about, and whether they may be compared."""
