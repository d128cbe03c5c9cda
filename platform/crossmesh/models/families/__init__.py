"""Model families: a folder each with all that only it has, what several share beside them, and their registry."""
