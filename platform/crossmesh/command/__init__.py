"""The command `crossmesh`: its verbs, what each does, and completion. It starts with the standard library alone."""
