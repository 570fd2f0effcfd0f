"""Scores held-out questions, and compares evaluations with each other."""
