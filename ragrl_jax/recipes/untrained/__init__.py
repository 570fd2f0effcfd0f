"""Untrained baselines: prompting methods with one conversation or several, without training."""
