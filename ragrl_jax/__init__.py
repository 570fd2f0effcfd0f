"""Reinforcement learning that teaches language models to use retrieved documents, in JAX."""

__version__ = "0.2.0"
