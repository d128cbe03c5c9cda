"""A training run before it is one: memory, time, price and what forbids it."""
