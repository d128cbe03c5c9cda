"""Base models on torch: Hugging Face models filled shard by shard, attention kernels, LoRA dropout, GGUF. Workers only."""
