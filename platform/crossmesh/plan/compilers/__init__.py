"""Figures of the very step of a backend, compiled or traced without its hardware, in a process of its own."""
