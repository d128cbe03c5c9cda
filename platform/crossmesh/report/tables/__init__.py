"""The tables of a comparison: quantities of every run with their sources, and how they stand in a terminal."""
