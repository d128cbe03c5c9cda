"""Weights of base models: where they come from, how files are read and written, random and cut-down models."""
