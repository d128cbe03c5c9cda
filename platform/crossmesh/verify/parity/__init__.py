"""The check `training_parity`."""
