"""arXiv 2605.25645 beside what crossmesh computes for the same runs."""
