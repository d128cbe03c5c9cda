"""The trial: one fine-tuning run of a spec, tracked, resumable and done at most once."""
