"""What one trial is, and how it is done at most once: its records, its lease, its run. Sweeps, pipelines and repeats run trials."""
