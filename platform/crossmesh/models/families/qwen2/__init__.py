"""Qwen 2."""
