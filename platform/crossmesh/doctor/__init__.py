"""Whether this machine can do what a job will ask of it: one finding for each thing that is looked at, with the command that mends it.

Nothing is changed, installed or started here, and no framework is imported. Each check takes a spec and gives frozen findings, so it is the
same on any machine that has the package.
"""
