"""Experiment tracking: the only room that talks to MLflow, always by explicit run ids.

It stores what other rooms give it (parameters, metrics by step, records, files) and finds it again. It decides nothing about
training, and it never uses MLflow's active-run state, autologging or global tracking URI.
"""
