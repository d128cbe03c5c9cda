"""Qwen 3 MoE."""
