"""Many trials: sweeps, adaptive searches and repeats, gated, budgeted and resumable."""
