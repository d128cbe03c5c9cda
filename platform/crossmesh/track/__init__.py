"""Experiment tracking: stores what other rooms give it (parameters, metrics by step, records, files) and finds it again.

Where runs are kept is chosen by name (`trackers.py`). It decides nothing about training.
"""
