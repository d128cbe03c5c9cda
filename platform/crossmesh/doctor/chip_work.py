"""How much one chip is given to do while it is measured, on an accelerator (`True`) and on a CPU. Imports no framework."""

SIZE = {True: 8192, False: 512}
"""Rows of the square bfloat16 factors: large enough that a chip's matrix units have no gaps."""
COPIED = {True: 1 << 30, False: 1 << 26}
"""Bytes read, and as many written: far more than any cache."""
ENOUGH_S = 0.1
"""A round lasts so long at least: what a call costs to send is hidden by the calls before it."""
ROUNDS = 3
