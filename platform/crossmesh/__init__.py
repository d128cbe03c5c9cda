"""crossmesh: comparable fine-tuning and serving of one language model on TPU and GPU.

Rooms are floors: imports go down only (CONTRIBUTING.md). Importing this package loads no framework and has no effect.
"""

__version__ = "0.1.0"
