"""A job that trains a tiny model on a few rows, as arguments of its command line."""

TINY = (
    "model=tiny_llama",
    "data.rtl.train_rows=16",
    "data.rtl.heldout_rows=2",
    "data.rtl.hard_rows=0",
    "batch.size=8",
    "output=json",
)
