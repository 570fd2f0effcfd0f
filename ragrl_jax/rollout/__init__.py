"""Plays episodes: conversations over the engine, tools, groups of samples, several hosts."""
