"""The stages of an experiment in order (train, serve, evaluate, report), each skipped when it is already done."""
