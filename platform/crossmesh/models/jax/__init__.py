"""Base models on JAX: Tunix models filled from Hugging Face weights, on a mesh, in 4 bits, with LoRA. Workers only."""
