"""Answers of compilers and traces, kept so that no question is asked twice."""
