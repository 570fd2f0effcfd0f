"""Agents that call tools, or are programs of their own. No other room imports this one: without it, the rest works."""
