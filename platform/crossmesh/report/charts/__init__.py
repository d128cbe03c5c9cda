"""The charts of a comparison."""
