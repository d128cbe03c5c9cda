"""Qwen 3."""
