"""vLLM as a serving engine: its arguments on each accelerator, its start in a replica, its adapters, and what to measure ours against."""
