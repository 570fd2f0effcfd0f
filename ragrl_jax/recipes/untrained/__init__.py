"""Untrained baselines: RAG, IRCoT, Iter-RetGen, self-ask, SKR, closed book."""
