"""VERITAS: search, with a reward for thoughts that follow from the results."""
