"""arXiv 2605.25645 recomputed: its training, serving and evaluation tables beside what crossmesh says of them."""
