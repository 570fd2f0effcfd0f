"""Numbers that score answers, evidence and searches; pure functions."""
