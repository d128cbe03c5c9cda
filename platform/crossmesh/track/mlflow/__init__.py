"""The tracker `mlflow`: the only room that talks to MLflow, always by explicit run ids.

It never uses MLflow's active-run state, autologging or global tracking URI.
"""
