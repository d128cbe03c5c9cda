"""One training loop over a narrow backend protocol with two implementations, and the Ray Train wrappers around it."""
