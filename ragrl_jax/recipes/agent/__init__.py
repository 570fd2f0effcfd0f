"""Trains an agent that lives elsewhere: any program that talks to an OpenAI-compatible endpoint."""
