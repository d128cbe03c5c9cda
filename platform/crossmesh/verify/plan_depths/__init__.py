"""The check `plan_depths`."""
