"""Reward terms: pure functions from text and passages to an unweighted number."""
