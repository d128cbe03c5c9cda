"""The exchange format of trained adapters (Hugging Face PEFT folders) and its way to and from JAX layouts: arrays and names only."""
