"""The check `train_overhead`."""
