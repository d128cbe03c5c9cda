"""Proofs that a user can run: one file a check, each measured on this machine and judged against a bound. No proof trusts another."""
