"""Base models: where weights come from, what they are built of, and the one table of module names and LoRA targets."""
