"""From sources to batches: chat rows, the model's own template, tokens with an assistant-only loss mask, order and packing."""
