"""Comparison of finished runs: the comparability gate, what the numbers say, a table, a self-contained HTML page and JSON.

It reads values it is handed and writes files. It measures nothing, starts nothing, and talks neither to a tracker nor to a cluster.
"""
